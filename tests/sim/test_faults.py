"""Each fault happens when it should, to whom it should, and looks like the real thing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import httpx
import pytest

from pytest_llmperf.sim.faults import Faults, Moment, holds, parse_fault
from tests.sim.serving import FAST, chat, client, complete, events, metric, serving, wait_for

# one token a step, so that tokens can be counted by chunks
PLAIN = f"{FAST}acceptance=1e-9&"


# Pure: when a fault holds


def test_all_limits_of_a_fault_must_hold() -> None:
    fault = parse_fault("error@request:2,token:5,time:1")
    assert holds(fault, Moment(1.0, 0, 2, 5))
    assert not holds(fault, Moment(0.9, 0, 2, 5))
    assert not holds(fault, Moment(1.0, 0, 2, 4))
    assert not holds(fault, Moment(1.0, 0, 3, 5))
    assert holds(parse_fault("error"), Moment(0.0, 0))


def test_an_event_happens_once() -> None:
    faults = Faults([parse_fault("stall:1@total:100")])
    assert faults.server_due(Moment(0, 99)) == []
    assert len(faults.server_due(Moment(0, 100))) == 1
    assert faults.server_due(Moment(0, 101)) == []


def test_an_event_of_requests_happens_once_to_each() -> None:
    faults = Faults([parse_fault("error@request:2+,token:3")])
    assert faults.concerning(1) == []
    for number in (2, 3):
        pending = faults.concerning(number)
        assert faults.due(pending, Moment(0, 0, number, 2)) == []
        assert len(faults.due(pending, Moment(0, 0, number, 3))) == 1
        assert pending == []


# On the wire


def _stream(http: httpx.Client, max_tokens: int = 8) -> Iterator[str]:
    with http.stream("POST", "/v1/chat/completions", json=chat(max_tokens)) as answer:
        yield from answer.iter_lines()


def test_refused_requests_are_the_named_ones() -> None:
    with serving(f"{PLAIN}fault=http:429@request:2&fault=http:503@request:4-5") as (_, http):
        answers = [http.post("/v1/chat/completions", json=chat()) for _ in range(6)]
    assert [a.status_code for a in answers] == [200, 429, 200, 503, 503, 200]
    assert answers[1].json()["error"]["code"] == 429


@pytest.mark.parametrize(("engine", "done"), [("vllm", True), ("llamacpp", False)])
def test_an_error_in_the_stream_comes_after_so_many_tokens(engine: str, done: bool) -> None:
    with serving(f"{PLAIN}engine={engine}&fault=error@request:1,token:5") as (_, http):
        found = complete(http, chat(20))
        assert sum("error" in e for e in found) == 1
        error = next(e for e in found if "error" in e)["error"]
        assert error["code"] == 500
        assert len([e for e in found if _has_text(e)]) == 5
        assert ("[DONE]" in found) == done
        assert "error" not in str(complete(http, chat(20)))


def _has_text(event: object) -> bool:
    return (
        isinstance(event, dict)
        and bool(event.get("choices"))
        and bool(event["choices"][0]["delta"].get("content"))
    )


def test_a_truncated_stream_has_no_end() -> None:
    with serving(f"{PLAIN}fault=truncate@token:5") as (_, http):
        lines = []
        with pytest.raises(httpx.RemoteProtocolError):
            lines.extend(_stream(http))
        assert "[DONE]" not in "".join(lines)
        assert wait_for(lambda: metric(http, "vllm:num_requests_running") == 0)


def test_an_early_stop_ends_like_an_answer() -> None:
    with serving(f"{PLAIN}fault=stop@token:5") as (_, http):
        found = complete(http, chat(20))
        assert found[-2]["usage"]["completion_tokens"] == 5
        reasons = [e["choices"][0]["finish_reason"] for e in found[:-2]]
        assert reasons == [None] * 6 + ["stop"]


def test_a_crash_ends_the_process_after_so_many_tokens() -> None:
    with serving(f"{PLAIN}fault=crash@total:50") as (process, http):
        assert len(complete(http, chat(20))) > 20
        with pytest.raises(httpx.HTTPError):
            list(_stream(http, 100))
        assert wait_for(lambda: process.exit_code is not None)
        assert process.exit_code == 1


def test_a_crash_happens_at_its_time_without_any_traffic() -> None:
    with serving(f"{PLAIN}fault=crash@time:0.3") as (process, _):
        assert wait_for(lambda: process.exit_code == 1)


def test_a_stall_delays_one_step() -> None:
    with serving(f"{PLAIN}fault=stall:0.5@request:2,token:10") as (_, http):
        for expected in (0, 1):
            stamps = [time.monotonic() for line in _stream(http, 30) if line.startswith("data")]
            gaps = [b - a for a, b in pairwise(stamps)]
            assert sum(gap > 0.4 for gap in gaps) == expected
            if expected:
                # the role chunk is the first: the tenth token is the eleventh line
                assert gaps.index(max(gaps)) == 10


def test_a_hung_server_accepts_and_never_answers() -> None:
    with serving(f"{PLAIN}fault=hang@request:2") as (process, http):
        complete(http, chat())
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/chat/completions", json=chat(), timeout=0.3)
        with client(process) as other, pytest.raises(httpx.ReadTimeout):
            other.get("/health", timeout=0.3)


def test_held_back_tokens_come_in_larger_chunks() -> None:
    def counts(query: str) -> list[int]:
        with serving(PLAIN + query) as (_, http):
            found = [e["usage"]["completion_tokens"] for e in complete(http, chat(20))[:-1]]
        return sorted({*found})

    assert counts("fault=hold:8") == [0, 8, 16, 20]
    assert counts("fault=hold") == [0, 20]


def test_a_buffering_proxy_passes_blocks_on() -> None:
    """Headers and all come in blocks of at least so many bytes; the content is whole."""
    slow = "decode_speed=0.05&"
    with serving(f"{PLAIN}{slow}fault=buffer:4000") as (_, http):
        reads = []
        with http.stream("POST", "/v1/chat/completions", json=chat(50)) as answer:
            for data in answer.iter_raw():
                reads.append(data)
    # what the socket hands over is not one block each time, so count pauses, not reads
    text = b"".join(reads).decode()
    assert events(text)[-2]["usage"]["completion_tokens"] == 50
    with serving(f"{PLAIN}{slow}fault=buffer") as (_, http):
        began = time.monotonic()
        with http.stream("POST", "/v1/chat/completions", json=chat(50)) as answer:
            headers = time.monotonic() - began
            answer.read()
        rest = time.monotonic() - began - headers
    assert rest < headers / 4


def test_no_usage_and_wrong_usage() -> None:
    with serving(f"{PLAIN}fault=no_usage@request:1&fault=wrong_usage:3@request:2") as (_, http):
        assert "usage" not in str(complete(http, chat(10)))
        found = complete(http, chat(10))
        assert found[-2]["usage"]["completion_tokens"] == 30
        assert [e["usage"]["completion_tokens"] for e in found[1:4]] == [3, 6, 9]
        assert complete(http, chat(10))[-2]["usage"]["completion_tokens"] == 10


def _leave(http: httpx.Client) -> None:
    """Start a long request and close the connection after its first token."""
    with http.stream("POST", "/v1/chat/completions", json=chat(2000)) as answer:
        next(answer.iter_lines())


@pytest.mark.parametrize("zombie", [False, True])
def test_a_disconnect_ends_the_request_unless_told_otherwise(zombie: bool) -> None:
    query = "decode_speed=0.05&" + ("fault=zombie" if zombie else "")
    with serving(PLAIN + query) as (process, http), client(process) as leaving:
        _leave(leaving)
        leaving.close()
        gone = wait_for(lambda: metric(http, "vllm:num_requests_running") == 0, 0.5)
        assert gone != zombie
        if zombie:
            before = metric(http, "vllm:generation_tokens_total")
            time.sleep(0.2)
            assert metric(http, "vllm:generation_tokens_total") > before


def test_metrics_can_be_missing_bare_or_wrong() -> None:
    with serving(f"{PLAIN}fault=no_metrics") as (_, http):
        assert http.get("/metrics").status_code == 404
    with serving(f"{PLAIN}fault=no_gauges") as (_, http):
        text = http.get("/metrics").text
        assert "cache_config_info" in text
        assert "num_requests_running" not in text
    with serving(f"{PLAIN}fault=wrong_gauges:2@total:20") as (_, http):
        complete(http, chat(10))
        assert metric(http, "vllm:generation_tokens_total") == 10
        complete(http, chat(10))
        assert metric(http, "vllm:generation_tokens_total") == 40


def test_lower_acceptance_makes_fewer_tokens_per_step() -> None:
    def per_step(query: str) -> float:
        with serving(f"{FAST}seed=3&{query}") as (_, http):
            complete(http, chat(600))
            accepted = metric(http, "vllm:spec_decode_num_accepted_tokens_total")
            return 1 + accepted / metric(http, "vllm:spec_decode_num_drafts_total")

    full, half = per_step(""), per_step("acceptance=0.5")
    assert full > 2
    assert half - 1 == pytest.approx((full - 1) / 2, rel=0.2)
