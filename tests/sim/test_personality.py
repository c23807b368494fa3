"""The two personalities answer in the shapes that were captured from the real engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from pytest_llmperf.sim.process import start
from tests.sim.serving import FAST, chat, client, complete, events, metric, serving, wait_for

CAPTURES = Path(__file__).parent.parent / "data" / "captures"
# vLLM sends the first only with a server flag; the second says that this is a simulator
OURS = {"prompt_tokens_details", "llmperf_simulated"}


@pytest.fixture(scope="module")
def vllm() -> Iterator[httpx.Client]:
    # no speculation in the captures, so a token a chunk
    spec = f"{FAST}acceptance=1e-9&kv_tokens=65536&max_model_len=4096&model=tiny"
    with start(spec) as process, client(process) as http:
        yield http


@pytest.fixture(scope="module")
def llamacpp() -> Iterator[httpx.Client]:
    spec = f"{FAST}engine=llamacpp&slots=4&kv_tokens=16384&unified=0"
    with start(spec) as process, client(process) as http:
        yield http


def captured(name: str) -> tuple[int, str]:
    """Status and body of a capture."""
    text = (CAPTURES / name).read_bytes().decode().replace("\r\n", "\n")
    head, _, body = text.partition("\n\n") if text.startswith("HTTP/") else ("x 200", "", text)
    return int(head.split()[1]), body


def shape(value: Any) -> Any:
    """Keys and types; a list is what its first entry is."""
    if isinstance(value, dict):
        return {key: shape(v) for key, v in sorted(value.items()) if key not in OURS}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return "number" if type(value) in (int, float) else type(value).__name__


def kinds(found: list[Any]) -> list[Any]:
    """The shapes of a stream's events, repeats left out."""
    shapes = [e if e == "[DONE]" else shape(e) for e in found]
    return [s for i, s in enumerate(shapes) if i == 0 or s != shapes[i - 1]]


STREAMS = {
    "chat_stream_plain.sse": (True, {"stream_options": None}),
    "chat_stream_usage.sse": (True, {"stream_options": {"include_usage": True}}),
    "chat_stream_usage_cont.sse": (True, {}),
    "compl_stream_plain.sse": (False, {"stream_options": None}),
    "compl_stream_usage_cont.sse": (False, {}),
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_streams_have_the_captured_events(
    engine: str, name: str, request: pytest.FixtureRequest
) -> None:
    """Role chunk, text, finish, usage, [DONE]: the same events in the same order and shape."""
    http = request.getfixturevalue(engine)
    is_chat, more = STREAMS[name]
    body = chat(6, **more)
    if not is_chat:
        body |= {"prompt": "Hello world"}
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    answer = http.post(path, json=body)
    ours, real = events(answer.text), events(captured(f"{engine}/{name}")[1])
    assert kinds(ours) == kinds(real)
    # and the text comes as 6 chunks of a token, as there a token a chunk
    texts = [e for e in ours if e != "[DONE]" and e["choices"] and _text(e["choices"][0])]
    assert len(texts) == 6


def _text(choice: dict[str, Any]) -> str:
    return choice.get("text") or choice.get("delta", {}).get("content") or ""


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
@pytest.mark.parametrize("name", ["chat_nostream.json", "compl_nostream.json"])
def test_whole_answers_have_the_captured_shape(
    engine: str, name: str, request: pytest.FixtureRequest
) -> None:
    http = request.getfixturevalue(engine)
    body = chat(6, stream=False, stream_options=None)
    path = "/v1/chat/completions"
    if name.startswith("compl"):
        body |= {"prompt": "Hello world"}
        path = "/v1/completions"
    answer = http.post(path, json=body)
    assert shape(answer.json()) == shape(json.loads(captured(f"{engine}/{name}")[1]))
    assert answer.json()["usage"]["completion_tokens"] == 6


PAGES = {
    "vllm": [
        "get_v1_models", "get_version", "get_load", "get_health", "get_props",
    ],
    "llamacpp": [
        "get_v1_models", "get_version", "get_health", "get_slots",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("engine", "name"), [(e, n) for e, names in PAGES.items() for n in names])
def test_pages_have_the_captured_shape(
    engine: str, name: str, request: pytest.FixtureRequest
) -> None:
    http = request.getfixturevalue(engine)
    path = "/" + name.removeprefix("get_").replace("v1_", "v1/")
    status, body = captured(f"{engine}/{name}.txt")
    answer = http.get(path)
    assert answer.status_code == status
    if body:
        assert shape(answer.json()) == shape(json.loads(body))
    else:
        assert answer.content == b""


def test_llamacpp_props_name_slots_and_context(llamacpp: httpx.Client) -> None:
    """What is there has the captured names and types; 16K over 4 split slots is 4096 each."""
    ours = llamacpp.get("/props").json()
    real = shape(json.loads(captured("llamacpp/get_props.txt")[1]))
    extra = {key: s for key, s in shape(ours).items() if key != "default_generation_settings"}
    assert extra.items() <= real.items()
    assert ours["total_slots"] == 4
    assert ours["default_generation_settings"]["n_ctx"] == 4096


def test_llamacpp_unified_slots_each_see_the_whole_pool() -> None:
    with serving(f"{FAST}engine=llamacpp&kv_tokens=8192") as (_, http):
        assert {slot["n_ctx"] for slot in http.get("/slots").json()} == {8192}


def test_llamacpp_metrics_have_the_captured_names(llamacpp: httpx.Client) -> None:
    def names(text: str) -> list[str]:
        return [x.split()[0] for x in text.splitlines() if x.startswith("llamacpp:")]

    ours = llamacpp.get("/metrics").text
    real = captured("llamacpp/get_metrics_after.txt")[1]
    assert names(ours) == names(real)
    assert [x for x in ours.splitlines() if x.startswith("#")] == [
        x for x in real.splitlines() if x.startswith("#")
    ]


def test_vllm_metrics_have_the_captured_names(vllm: httpx.Client) -> None:
    """Each series exists in vLLM under that name and with those labels; speculation's come with
    speculative decoding only, so they are in no capture."""
    complete(vllm, chat())
    real = (CAPTURES / "vllm" / "get_metrics_after.txt").read_text()
    known = {_series(x) for x in real.splitlines() if not x.startswith("#")}
    ours = {_series(x) for x in vllm.get("/metrics").text.splitlines() if not x.startswith("#")}
    ours = {x for x in ours if "spec_decode" not in x[0] and "cache_config" not in x[0]}
    assert ours <= known
    wanted = {
        "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
        "num_preemptions_total", "prefix_cache_queries_total", "prefix_cache_hits_total",
        "prompt_tokens_total", "generation_tokens_total",
    }  # fmt: skip
    assert {f"vllm:{name}" for name in wanted} <= {name for name, _ in ours}


def _series(line: str) -> tuple[str, tuple[str, ...]]:
    name, _, labels = line.rpartition(" ")[0].partition("{")
    pairs = (pair.partition("=")[0] for pair in labels.rstrip("}").split(",") if "=" in pair)
    return name, tuple(sorted(pairs))


def test_vllm_cache_config_tells_the_budget(vllm: httpx.Client) -> None:
    text = vllm.get("/metrics").text
    (line,) = [x for x in text.splitlines() if x.startswith("vllm:cache_config_info{")]
    assert 'kv_cache_size_tokens="65536"' in line
    assert 'num_gpu_blocks="4096"' in line
    assert ',block_size="16"' in line or '{block_size="16"' in line


LONG = "word " * 5000


def _error(http: httpx.Client, body: Any, path: str = "/v1/chat/completions") -> httpx.Response:
    if isinstance(body, str):
        return http.post(path, content=body)
    return http.post(path, json=body)


VLLM_ERRORS = {
    "chat_too_long.txt": chat(8, LONG),
    "chat_wrong_model.sse": chat(8, model="nope"),
    "bad_json.txt": '{"model":',
    "chat_max_tokens_0.sse": chat(0),
    "chat_maxtokens_toolarge.txt": chat(9999999),
}


@pytest.mark.parametrize("name", VLLM_ERRORS)
def test_vllm_errors_are_the_captured_ones(vllm: httpx.Client, name: str) -> None:
    """Word for word: a client may read the limit out of them."""
    status, body = captured(f"vllm/{name}")
    answer = _error(vllm, VLLM_ERRORS[name])
    assert answer.status_code == status
    assert answer.json() == json.loads(body)


def test_vllm_refuses_prompt_and_answer_together_above_the_limit(vllm: httpx.Client) -> None:
    answer = _error(vllm, chat(4096))
    assert answer.status_code == 400
    assert "maximum context length is 4096 tokens" in answer.json()["error"]["message"]


def test_llamacpp_errors_are_the_captured_ones(llamacpp: httpx.Client) -> None:
    answer = _error(llamacpp, chat(8, LONG))
    status, body = captured("llamacpp/chat_too_long.txt")
    assert answer.status_code == status
    error = answer.json()["error"]
    assert shape(answer.json()) == shape(json.loads(body))
    assert error["n_ctx"] == 4096
    assert f"request ({error['n_prompt_tokens']} tokens) exceeds" in error["message"]
    assert error["n_prompt_tokens"] > 5000
    status, body = captured("llamacpp/bad_json.txt")
    answer = _error(llamacpp, '{"model":')
    assert answer.status_code == status
    assert shape(answer.json()) == shape(json.loads(body))


def test_llamacpp_takes_any_model_name_and_a_zero_limit(llamacpp: httpx.Client) -> None:
    found = complete(llamacpp, chat(0, model="nope"))
    assert found[0]["model"] == "nope"
    assert found[-2]["usage"]["completion_tokens"] == 1


def test_llamacpp_answer_ends_at_the_end_of_its_slot(llamacpp: httpx.Client) -> None:
    """A stream that reaches n_ctx ends early with finish_reason length, not with an error."""
    found = complete(llamacpp, chat(9999999))
    assert found[-3]["choices"][0]["finish_reason"] == "length"
    assert found[-2]["usage"]["total_tokens"] == 4096


@pytest.mark.parametrize(
    ("engine", "folder", "open_pages"),
    [
        ("vllm", "vllm-smallkv-key", ["/health", "/ping", "/load", "/version", "/metrics"]),
        ("llamacpp", "llamacpp-unified-key", ["/health", "/v1/health"]),
    ],
)
def test_a_wrong_key_is_refused_as_captured(
    engine: str, folder: str, open_pages: list[str]
) -> None:
    with serving(f"{FAST}engine={engine}&api_key=secret") as (_, http):
        status, body = captured(f"{folder}/chat_badkey.txt")
        for headers in ({}, {"authorization": "Bearer wrong"}):
            answer = http.get("/v1/models", headers=headers)
            assert answer.status_code == status
            assert answer.json() == json.loads(body)
            assert http.post("/v1/chat/completions", json=chat()).status_code == 401
        for page in open_pages:
            assert http.get(page).status_code == 200
        if engine == "llamacpp":
            assert {http.get(p).status_code for p in ("/props", "/slots", "/metrics")} == {401}
        key = {"authorization": "Bearer secret"}
        answer = http.post("/v1/chat/completions", json=chat(), headers=key)
        assert answer.status_code == 200


def test_tokenize_has_the_captured_shapes(vllm: httpx.Client, llamacpp: httpx.Client) -> None:
    def check(http: httpx.Client, path: str, name: str, body: dict[str, Any]) -> Any:
        status, real = captured(name)
        answer = http.post(path, json=body)
        assert answer.status_code == status
        assert shape(answer.json()) == shape(json.loads(real))
        return answer.json()

    messages = [{"role": "user", "content": "Hello"}]
    found = check(vllm, "/tokenize", "vllm/tokenize.txt", {"prompt": "Hello world, you"})
    assert found["count"] == len(found["tokens"])
    check(vllm, "/tokenize", "vllm/tokenize_chat.txt", {"messages": messages})
    check(vllm, "/detokenize", "vllm/detokenize.txt", {"tokens": found["tokens"]})
    check(vllm, "/apply-template", "vllm/apply_template.txt", {"messages": messages})
    body = {"content": "Hello world", "with_pieces": True}
    check(llamacpp, "/tokenize", "llamacpp/tokenize.txt", body)
    # a missing field is no error there
    check(llamacpp, "/tokenize", "llamacpp/tokenize_chat.txt", {"messages": messages})
    check(llamacpp, "/apply-template", "llamacpp/apply_template.txt", {"messages": messages})
    ids = llamacpp.post("/tokenize", json={"content": "Hello world"}).json()["tokens"]
    found = check(llamacpp, "/detokenize", "llamacpp/detokenize.txt", {"tokens": ids})
    assert found["content"] == "Hello world"


def test_vllm_tokenize_by_get_is_not_allowed(vllm: httpx.Client) -> None:
    status, body = captured("vllm-smallkv-key/nokey_tokenize.txt")
    answer = vllm.get("/tokenize")
    assert (answer.status_code, answer.json()) == (status, json.loads(body))
    assert answer.headers["allow"] == "POST"


def test_every_answer_says_that_it_is_simulated(vllm: httpx.Client, llamacpp: httpx.Client) -> None:
    for http in (vllm, llamacpp):
        answers = [http.get(path) for path in ("/v1/models", "/metrics", "/nope")]
        answers.append(http.post("/v1/chat/completions", json=chat()))
        answers.append(http.post("/v1/chat/completions", content="{"))
        assert {a.headers["x-llmperf-simulated"] for a in answers} == {"rtxpro6k_x4"}


def test_vllm_sends_a_chunk_a_step_under_speculation() -> None:
    """Chunks carry the step's tokens, several of them, and usage rises by so many."""
    with serving(FAST) as (_, http):
        found = complete(http, chat(200))
        counts = [e["usage"]["completion_tokens"] for e in found if e != "[DONE]"]
        assert counts[0] == 0
        assert counts[-1] == 200
        steps = [b - a for a, b in pairwise(counts[:-1])]
        assert max(steps) > 1
        texts = [e["choices"][0]["delta"]["content"] for e in found[1:-2]]
        assert [len(text.split()) for text in texts] == steps


def test_stream_interval_is_vllms() -> None:
    """1, then at least 4 a chunk, as captured from ``--stream-interval 4``."""
    with serving(f"{FAST}acceptance=1e-9&stream_interval=4") as (_, http):
        found = complete(http, chat(14))
        counts = [e["usage"]["completion_tokens"] for e in found if e != "[DONE]"]
        assert counts == [0, 1, 5, 9, 13, 14, 14]


def test_llamacpp_holds_headers_back_while_it_waits_for_a_slot() -> None:
    """With one slot the second request's headers come when the first has ended."""
    with (
        serving(f"{FAST}engine=llamacpp&slots=1&decode_speed=0.02") as (process, http),
        client(process) as other,
        other.stream("POST", "/v1/chat/completions", json=chat(100)) as first,
    ):
        lines = first.iter_lines()
        assert next(lines).startswith("data: ")
        assert [slot["is_processing"] for slot in http.get("/slots").json()] == [True]
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/chat/completions", json=chat(2), timeout=0.3)
        for _ in lines:
            pass
        assert len(complete(http, chat(2))) == 6


def test_llamacpp_sends_keep_alive_comments_during_prefill() -> None:
    spec = f"{FAST}engine=llamacpp&ping=0.1&prefill_speed=0.02&kv_tokens=16384"
    with serving(spec) as (_, http):
        text = http.post("/v1/chat/completions", json=chat(2, LONG)).text
        assert text.startswith(":\n\n")
        assert len(events(text)) == 6


def test_llamacpp_shared_pool_that_runs_out_ends_all_streams() -> None:
    """As captured: 200, an error in the stream, no [DONE]."""
    with serving(f"{FAST}engine=llamacpp&slots=2&kv_tokens=1024&decode_speed=0.1") as (
        process,
        http,
    ):
        body = chat(900)
        with client(process) as other, other.stream("POST", "/v1/chat/completions", json=body) as s:
            mine = events(http.post("/v1/chat/completions", json=body).text)
            theirs = events("\n".join(s.iter_lines()))
    for found in (mine, theirs):
        error = {
            "code": 500,
            "message": "Context size has been exceeded.",
            "type": "server_error",
        }
        assert found[-1] == {"error": error}


def test_vllm_queue_limit_refuses_inside_the_stream() -> None:
    """As captured: 200, the error object, then [DONE]."""
    with (
        serving(f"{FAST}slots=1&queue_limit=1&decode_speed=0.02") as (process, http),
        client(process) as a,
        client(process) as b,
        a.stream("POST", "/v1/chat/completions", json=chat(4000)) as first,
    ):
        lines = first.iter_lines()
        next(lines)
        with b.stream("POST", "/v1/chat/completions", json=chat(4000)):
            assert wait_for(lambda: metric(http, "vllm:num_requests_waiting") == 1)
            found = complete(http, chat(1))
    assert found[-1] == "[DONE]"
    assert found[0]["error"]["code"] == 503
    assert found[0]["error"]["type"] == "Service Unavailable"
