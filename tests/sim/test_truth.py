"""The truth file agrees with what a client sees, and with what was asked for."""

from __future__ import annotations

import json
import time
from itertools import accumulate
from pathlib import Path

import httpx
import pytest

from pytest_llmperf.sim.process import start
from pytest_llmperf.sim.truth import RequestTruth, TruthFile, read_truth
from tests.sim.serving import FAST, chat, client, complete


def test_what_is_added_is_read_back(tmp_path: Path) -> None:
    """Also a request with more steps than are formatted at a time."""
    path = tmp_path / "truth.jsonl"
    file = TruthFile(path)
    long = RequestTruth(1, "a", True, 10, 0.5, ended=9.0, end="length", tokens=1500)
    long.steps = [(i / 100, 3) for i in range(500)]
    refused = RequestTruth(2, "b", False, 10, 0.6)
    file.add(long)
    file.add(refused)
    file.close()
    first, second = read_truth(path)
    assert [tuple(step) for step in first.steps] == long.steps
    assert (first.end, first.tokens, second.steps) == ("length", 1500, [])


def _watch(http: httpx.Client, max_tokens: int) -> list[tuple[float, int]]:
    """Arrival and cumulative tokens of each chunk with tokens."""
    seen = []
    with http.stream("POST", "/v1/chat/completions", json=chat(max_tokens)) as answer:
        for line in answer.iter_lines():
            if '"usage"' in line and '"choices":[{' in line:
                tokens = json.loads(line[6:])["usage"]["completion_tokens"]
                if tokens:
                    seen.append((time.monotonic(), tokens))
    return seen


def test_truth_is_what_the_client_sees(tmp_path: Path) -> None:
    path = tmp_path / "truth.jsonl"
    with start(f"{FAST}decode_speed=0.02&truth={path}") as process, client(process) as http:
        before = time.monotonic()
        seen = _watch(http, 100)
        complete(http, chat(5))
    first, second = read_truth(path)
    assert (first.request, second.request) == (1, 2)
    assert (first.tokens, second.tokens) == (100, 5)
    assert (first.end, second.end) == ("length", "length")
    # the same chunks, each seen after it was sent, and most of them soon after
    assert [total for _, total in seen] == list(accumulate(new for _, new in first.steps))
    delays = sorted(at - sent for (at, _), (sent, _) in zip(seen, first.steps, strict=True))
    assert delays[0] >= 0
    assert delays[len(delays) // 2] < 0.02
    # in the order of a request's life
    assert first.admitted is not None
    assert first.first_token is not None
    assert first.ended is not None
    life = [before, first.arrived, first.admitted, first.first_token, first.ended]
    assert life == sorted(life)
    assert first.first_token == pytest.approx(first.steps[0][0], abs=1e-5)


def test_steps_keep_the_pace_of_the_model(tmp_path: Path) -> None:
    """Deadlines are absolute: a late step does not delay the ones after it."""
    path = tmp_path / "truth.jsonl"
    with start(f"sim:rtxpro6k_x4?acceptance=1e-9&truth={path}") as process, client(process) as http:
        complete(http, chat(101))
    (truth,) = read_truth(path)
    # one stream at a short context: the step time of the profile's smallest cell
    from pytest_llmperf.baseline.file import load
    from pytest_llmperf.sim.calibrate import calibrate
    from pytest_llmperf.sim.profile import ProfileTables

    baseline = load(Path(__file__).parents[2] / "baselines" / "rtxpro6k_x4.yaml")
    engine = calibrate(ProfileTables.from_baseline(baseline))
    assert len(truth.steps) == 101
    span = truth.steps[-1][0] - truth.steps[0][0]
    assert span == pytest.approx(100 * engine.decode_s(1, 100), rel=0.03)


def test_who_leaves_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "truth.jsonl"
    with start(f"{FAST}decode_speed=0.02&truth={path}") as process:
        with (
            client(process) as http,
            http.stream("POST", "/v1/chat/completions", json=chat(2000)) as s,
        ):
            next(s.iter_lines())
        time.sleep(0.2)
    (truth,) = read_truth(path)
    assert truth.end == "gone"
    assert 0 < truth.tokens < 2000


def test_cached_tokens_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "truth.jsonl"
    text = "some words of a prompt " * 20
    with start(f"{FAST}truth={path}") as process, client(process) as http:
        usage = [complete(http, chat(3, text))[-2]["usage"] for _ in range(2)]
    for truth, seen in zip(read_truth(path), usage, strict=True):
        assert truth.cached_tokens == seen["prompt_tokens_details"]["cached_tokens"]
        assert truth.prompt_tokens == seen["prompt_tokens"]
    blocks = (usage[0]["prompt_tokens"] - 1) // 16
    assert [u["prompt_tokens_details"]["cached_tokens"] for u in usage] == [0, blocks * 16]
