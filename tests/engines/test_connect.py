"""From a URL to a server that can be measured, or to one message that says what to do."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

import pytest_llmperf.server.connect as connecting
from pytest_llmperf.client.http import Unreachable
from pytest_llmperf.engines import patient
from pytest_llmperf.engines.identity import find_change
from pytest_llmperf.model.errors import ConfigError, ServerUnusable
from pytest_llmperf.server.connect import Connected, connect
from tests.engines.fake import FakeApi, capture, models, run

LOADING = (
    503,
    '{"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}',
)
LOST = Unreachable("lost", "http://h:1 closed the connection")
REFUSED = Unreachable("refused", "nothing listens at http://h:1; start the server, or wait for it")
PAUSES_S = patient.PAUSES_S
VLLM = {
    "/health": "",
    "/v1/models": capture("vllm/get_v1_models.txt"),
    "/version": capture("vllm/get_version.txt"),
    "/metrics": capture("vllm/get_metrics_after.txt"),
}


def connected(answers: dict[str, Any], **options: Any) -> Connected:
    return run(connect(FakeApi(answers), **options))


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(connecting, "_LONGEST_PAUSE_S", 0.01)
    monkeypatch.setattr(patient, "PAUSES_S", (0.0,) * len(patient.PAUSES_S))


def test_a_ready_server_is_found_with_model_and_engine() -> None:
    found = connected(VLLM)
    assert found.engine.name == found.info.engine == "vllm"
    assert (found.info.model, found.info.models) == ("tiny", ["tiny"])
    assert found.info.simulated is False


def test_f6_a_server_that_loads_is_waited_for_and_said_so_once() -> None:
    said: list[str] = []
    answers = VLLM | {"/health": [LOADING] * 3 + [(200, "")]}
    answers["/v1/models"] = [LOADING, LOADING, VLLM["/v1/models"]]
    found = connected(answers, say=said.append)
    assert found.info.model == "tiny"
    assert len(said) == 1
    assert "Loading model" in said[0]


def test_f6_models_may_be_listed_while_the_server_still_loads() -> None:
    """llama.cpp lists its model, with empty facts, before it is ready."""
    early = models("smol", owned_by="llamacpp", meta=None)
    answers = {"/health": [LOADING, LOADING, (200, '{"status":"ok"}')], "/v1/models": early}
    api = FakeApi(answers)
    assert run(connect(api)).info.model == "smol"
    assert api.asked.count("/health") == 3


def test_f6_loading_for_ever_is_an_error_with_the_servers_words() -> None:
    began = time.monotonic()
    with pytest.raises(ServerUnusable, match=r"not ready after .*Loading model.*--llm-wait"):
        connected({"/health": LOADING, "/v1/models": LOADING}, wait_s=0.1)
    assert time.monotonic() - began < 60, "not the ten minutes without the option"


def test_a_refused_connection_is_an_error_at_once() -> None:
    api = FakeApi({"/health": REFUSED, "/v1/models": REFUSED})
    with pytest.raises(ServerUnusable, match="nothing listens"):
        run(connect(api))
    assert api.asked.count("/health") == 1


def test_a_refused_connection_is_waited_for_when_asked_to() -> None:
    answers = VLLM | {"/health": [REFUSED, REFUSED, LOADING, (200, "")]}
    assert connected(answers, wait_s=5).info.model == "tiny"


def test_waiting_for_a_refused_connection_ends() -> None:
    with pytest.raises(ServerUnusable, match="nothing listens"):
        connected({"/health": REFUSED, "/v1/models": REFUSED}, wait_s=0.05)


BAD_GATEWAY = (502, "<html>Bad Gateway</html>")


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/version", "/metrics"])
@pytest.mark.parametrize("trouble", [BAD_GATEWAY, (500, "oops"), (504, ""), LOST])
@pytest.mark.parametrize("times", [1, 3])
def test_a_failure_that_passes_is_asked_again(path: str, trouble: Any, times: int) -> None:
    """As any client would; which engine it is does not hang on one answer either."""
    found = connected(VLLM | {path: [trouble] * times + [VLLM[path]]})
    assert (found.info.model, found.info.engine) == ("tiny", "vllm")


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (BAD_GATEWAY, "does not answer /v1/models like an OpenAI server .HTTP 502"),
        ((500, "oops"), "does not answer /v1/models like an OpenAI server .HTTP 500: oops"),
        (LOST, "closed the connection; is it https://, or another port. check --llm-url"),
    ],
)
def test_a_failure_that_stays_is_an_error_after_a_few_tries(trouble: Any, words: str) -> None:
    api = FakeApi(VLLM | {"/v1/models": trouble})
    with pytest.raises(ServerUnusable, match=words):
        run(connect(api))
    assert api.asked.count("/v1/models") == 1 + len(patient.PAUSES_S)


def test_tries_are_spread_over_seconds() -> None:
    """The load balancer in front of a server that moves needs about that long."""
    assert 2 <= sum(PAUSES_S) <= 5


def test_a_gateway_error_is_waited_for_longer_when_asked_to() -> None:
    answers = VLLM | {"/v1/models": [BAD_GATEWAY] * 9 + [VLLM["/v1/models"]]}
    assert connected(answers, wait_s=5).info.model == "tiny"


def test_one_bad_answer_between_cells_is_no_change_of_the_server() -> None:
    """It would end the run."""
    found = connected(VLLM)
    api = FakeApi(VLLM | {"/v1/models": [BAD_GATEWAY, LOST, VLLM["/v1/models"]]})
    assert run(find_change(api, found.engine, found.info)) == ""


@pytest.mark.parametrize("cause", ["dns", "not-http"])
def test_what_waiting_cannot_cure_is_not_waited_for(cause: Any) -> None:
    gone = Unreachable(cause, "no host is named 'h'")
    api = FakeApi({"/health": gone, "/v1/models": gone})
    with pytest.raises(ServerUnusable, match="no host"):
        run(connect(api, wait_s=30))
    assert api.asked == ["/health", "/v1/models"]


def test_a_tls_failure_names_the_options_and_is_not_waited_for() -> None:
    bad = Unreachable("tls", "https://h: its certificate is not trusted")
    with pytest.raises(ServerUnusable, match=r"not trusted.*--llm-ca.*--llm-insecure"):
        connected({"/health": bad, "/v1/models": bad}, wait_s=30)


@pytest.mark.parametrize(
    "answer",
    [
        capture("llamacpp-unified-key/nokey_v1_models.txt"),
        capture("vllm-smallkv-key/nokey_v1_models.txt"),
        (403, "<html>Forbidden</html>"),
    ],
)
def test_a_missing_key_says_where_to_set_it(answer: Any) -> None:
    with pytest.raises(ConfigError, match=r"HTTP 40[13].*--llm-api-key or LLMPERF_API_KEY"):
        connected({"/health": "", "/v1/models": answer})


@pytest.mark.parametrize(
    "answer",
    [
        (404, '{"detail":"Not Found"}'),
        (200, "<html>welcome</html>"),
        (200, "[]"),
        (200, '{"models": []}'),
        (200, '{"data": "x"}'),
        (200, ""),
        (500, "Internal Server Error"),
        (308, ""),
    ],
)
def test_a_url_that_is_no_openai_server_says_so(answer: Any) -> None:
    with pytest.raises(ServerUnusable, match=r"does not answer /v1/models like an OpenAI server"):
        connected({"/health": "", "/v1/models": answer})


def test_an_endpoint_without_a_model_list_is_used_when_the_model_is_named() -> None:
    """`transformers serve` answers 500 there without the network."""
    answers = {
        "/health": '{"status":"ok"}',
        "/v1/models": (500, "Internal Server Error"),
        "POST /v1/chat/completions": (400, '{"error": {"message": "messages is empty"}}'),
    }
    assert connected(answers, model="tiny").info.model == "tiny"
    with pytest.raises(ServerUnusable, match="like an OpenAI server"):
        connected(answers)
    answers["POST /v1/chat/completions"] = (404, "{}")
    with pytest.raises(ServerUnusable, match="like an OpenAI server"):
        connected(answers, model="tiny")


def test_several_models_without_a_choice_are_listed() -> None:
    with pytest.raises(ConfigError, match=r"several models: a, b\nName one with --llm-model"):
        connected({"/health": "", "/v1/models": models("a", "b")})


def test_a_long_list_of_models_is_cut() -> None:
    many = models(*(f"m{i}" for i in range(300)))
    with pytest.raises(ConfigError, match="m19 and 280 more"):
        connected({"/health": "", "/v1/models": many})


def test_one_of_several_models_is_chosen() -> None:
    found = connected({"/health": "", "/v1/models": models("a", "b")}, model="b")
    assert (found.info.model, found.info.models) == ("b", ["a", "b"])


def test_names_of_one_model_are_no_choice_but_adapters_are() -> None:
    """vLLM lists every --served-model-name with the same root; an adapter names its parent."""
    names = models("a", "b", root="org/m", parent=None)
    assert connected({"/health": "", "/v1/models": names}).info.model == "a"
    adapters = models("a", "lora", root="org/m", parent="a")
    with pytest.raises(ConfigError, match="several models"):
        connected({"/health": "", "/v1/models": adapters})


@pytest.mark.parametrize("wanted", ["org/m", "nick", "served"])
def test_a_model_is_meant_by_id_alias_or_root(wanted: str) -> None:
    listed = models("served", root="org/m", aliases=["nick"])
    assert connected({"/health": "", "/v1/models": listed}, model=wanted).info.model == "served"


def test_an_unknown_model_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"does not serve 'llama3'.*llama-3\?\nIt serves llama-3"):
        connected({"/health": "", "/v1/models": models("llama-3")}, model="llama3")


@pytest.mark.parametrize("data", [[], None])
def test_a_server_without_a_model_says_to_load_one(data: Any) -> None:
    with pytest.raises(ConfigError, match="serves no model"):
        connected({"/health": "", "/v1/models": {"object": "list", "data": data}})


def test_the_user_overrides_the_engine() -> None:
    assert connected(VLLM, engine="generic").info.engine == "openai"
    with pytest.raises(ConfigError, match="--llm-engine"):
        connected(VLLM, engine="nope")


def test_run_info_fills_what_the_server_does_not_tell() -> None:
    told = {
        "quantization": "fp8",
        "engine_version": "1.0",
        "max_num_seqs": "8",
        "kv_tokens": "1000",
        "commit": "abc",
    }
    info = connected(VLLM, run_info=told).info
    assert (info.quantization, info.max_num_seqs) == ("fp8", 8)
    assert info.version == "0.32.0"
    assert info.kv_tokens == 2_097_152 - 128
    plain = connected({"/health": "", "/v1/models": models("m")}, run_info=told).info
    assert (plain.version, plain.kv_tokens, plain.kv_source) == ("1.0", 1000, "--llm-run-info")


def test_run_info_that_is_no_number_is_an_error() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs='many'"):
        connected(VLLM, run_info={"max_num_seqs": "many"})


def test_the_users_budget_replaces_the_servers() -> None:
    info = connected(VLLM, kv_tokens=5000).info
    assert (info.kv_tokens, info.kv_source) == (5000, "--llm-kv-tokens")


def test_a_simulated_server_is_marked_and_otherwise_what_it_plays() -> None:
    card = models("deepseek", owned_by="vllm", llmperf_simulated="rtxpro6k_x4")
    info = connected(VLLM | {"/v1/models": card}).info
    assert (info.engine, info.simulated) == ("vllm", True)


def test_e10_two_servers_on_one_address_are_seen() -> None:
    """Their start times alternate: gauges of one are not taken for both."""
    times = itertools.cycle(["1.7e9", "1.8e9"])
    pages = [
        f'process_start_time_seconds {next(times)}\nvllm:num_requests_running{{engine="0"}} 1\n'
        for _ in range(8)
    ]
    found = connected(VLLM | {"/metrics": pages})
    assert found.info.started is None
    assert any("several servers" in note for note in found.info.notes)
    assert run(found.engine.gauges()) is None


def test_hostile_words_of_a_server_are_one_short_line() -> None:
    body = "\x1b[2J" + "line\r\n" * 10_000
    with pytest.raises(ServerUnusable) as error:
        connected({"/health": "", "/v1/models": (418, body)})
    assert "\x1b" not in str(error.value)
    assert len(str(error.value)) < 400
    assert "\n" not in str(error.value)
