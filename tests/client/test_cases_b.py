"""Cases B: what counts as a token. Most need no server: a reader, and bytes with a stamp each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_llmperf.client.record import StreamRecord
from pytest_llmperf.measure.counting import count
from tests.client.driving import drive, read, serving
from tests.client.events import DONE, ROLE, STOP, choice, counted, delta, event, usage, words


def test_b1_several_tokens_a_chunk_are_counted_by_usage(transport: str) -> None:
    body = [counted("a b c ", 3 * i) for i in range(1, 101)]
    (record,) = drive(serving(b"".join([*body, STOP, usage(300), DONE])), transport=transport)
    assert (record.tokens[-1], record.chunks[-1]) == (300, 100)
    assert record.usage_seen == "continuous"


def test_b2_tokens_of_any_span_never_exceed_the_total() -> None:
    """Peak and mean come from one curve: it never falls, and ends at the final usage."""
    record = read(*[counted("x", n) for n in (1, 5, 5, 9, 14)], STOP, usage(14), DONE)
    assert record.tokens == sorted(record.tokens) == [1, 5, 9, 14]
    assert record.completion_tokens == record.tokens[-1]


def test_b3_chunks_and_tokens_are_told_apart(transport: str) -> None:
    counts = [3 * i + i % 2 for i in range(1, 79)]
    body = b"".join(counted("abc", n) for n in counts)
    (record,) = drive(serving(body, STOP, DONE), transport=transport)
    assert record.tokens == counts
    assert record.chunks == list(range(1, 79))


def test_b4_the_tokens_of_the_first_chunk_are_known() -> None:
    record = read(counted("w " * 20, 20), *[counted("w", n) for n in range(21, 101)], STOP, DONE)
    assert (record.tokens[0], record.tokens[-1]) == (20, 100)


CHANNELS: list[dict[str, Any]] = [
    {"content": "Okay"},
    {"reasoning": "Okay"},
    {"reasoning_content": "Okay"},
    {"reasoning_details": [{"type": "reasoning.text", "text": "Okay"}]},
    {"reasoning_details": [{"type": "reasoning.summary", "summary": "Okay"}]},
    {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Okay"}]}]},
    {"refusal": "Okay"},
    {"tool_calls": [{"index": 0, "function": {"name": "Okay", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": "Okay"}}]},
    {"function_call": {"arguments": "Okay"}},
    {"role": "assistant", "content": None, "reasoning_content": "Okay", "tool_calls": None},
]


@pytest.mark.parametrize("channel", CHANNELS, ids=json.dumps)
def test_b5_every_channel_of_text_is_generation(channel: dict[str, Any]) -> None:
    record = read(ROLE, *[delta(**channel)] * 3, choice(delta={}, finish_reason="length"), DONE)
    assert record.end == "finished"
    assert record.stamps == [0.2, 0.3, 0.4]
    assert record.tail == "Okay" * 3


def test_b5_completions_have_a_text() -> None:
    chunk = choice(text=" upon", logprobs=None, finish_reason=None)
    record = read(chunk, chunk, choice(text="", finish_reason="length"), DONE)
    assert (record.end, record.tail, len(record.stamps)) == ("finished", " upon upon", 2)


def test_b5_text_that_comes_in_two_forms_is_taken_once() -> None:
    both = delta(reasoning="Hm", reasoning_details=[{"type": "reasoning.text", "text": "Hm"}])
    assert read(both, both, STOP, DONE).tail == "HmHm"


def test_b8_usage_wins_over_anything_in_the_text(transport: str) -> None:
    """128 tokens that look like seven, or like none."""
    texts = [" " * 20, "\ufffd\ufffd", "\u200b", "   "]
    body = [counted(texts[i % 4], i) for i in range(1, 129)]
    (record,) = drive(serving(b"".join([*body, STOP, DONE])), transport=transport)
    assert (record.completion_tokens, record.tokens[-1]) == (128, 128)


def test_b9_missing_usage_is_unknown_never_zero(transport: str) -> None:
    (record,) = drive(serving(b"".join([*words(4), STOP, DONE])), transport=transport)
    assert record.end == "finished"
    assert (record.completion_tokens, record.prompt_tokens, record.cached_tokens) == (None,) * 3
    assert (record.usage_seen, record.tokens, record.chunks) == (None, [], [1, 2, 3, 4])


@pytest.mark.parametrize(
    "bad", [None, {}, [], "12", {"completion_tokens": None}, {"completion_tokens": {}}]
)
def test_b9_empty_usage_is_no_usage(bad: Any) -> None:
    record = read(*words(2), event({"choices": [], "usage": bad}), STOP, DONE)
    assert (record.end, record.completion_tokens, record.usage_seen) == ("finished", None, None)


@pytest.mark.parametrize("bad", ["12", -3, 1.5, True, [4], 10**12])
def test_b9_a_count_that_is_none_is_left_out_and_said(bad: Any) -> None:
    record = read(*words(2), usage(bad), STOP, DONE)
    assert (record.end, record.completion_tokens) == ("finished", None)
    assert record.usage_odd


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "-Infinity", "1e999", "-0.0"])
def test_b9_a_count_that_is_no_json_number_is_left_out(bad: str) -> None:
    body = b'data: {"choices":[],"usage":{"completion_tokens":%s}}\n\n' % bad.encode()
    record = read(*words(2), body, STOP, DONE)
    assert (record.end, record.completion_tokens, record.usage_odd) == ("finished", None, True)


def test_b9_a_count_of_zero_beside_text_is_not_believed() -> None:
    record = read(*words(2), usage(0), STOP, DONE)
    assert (record.end, record.completion_tokens, record.usage_odd) == ("finished", None, True)


def test_b9_a_falling_count_leaves_the_highest_standing() -> None:
    record = read(*[counted("x", n) for n in (1, 2, 9, 4, 10)], STOP, usage(3), DONE)
    assert record.tokens == [1, 2, 9, 10]
    assert (record.completion_tokens, record.usage_odd) == (10, True)


def test_b10_the_kind_of_usage_is_seen_not_assumed() -> None:
    """A server that takes continuous_usage_stats and ignores it sends final usage, or none."""
    assert read(*words(3), STOP, usage(3), DONE).usage_seen == "final"
    assert read(*words(3), STOP, DONE).usage_seen is None
    assert read(counted("a", 1), counted("b", 2), STOP, DONE).usage_seen == "continuous"


def test_b10_usage_on_the_last_text_chunk_alone_is_not_continuous() -> None:
    record = read(*words(3), counted("end", 4, "length"), DONE)
    assert (record.usage_seen, record.completion_tokens, record.tokens) == ("final", 4, [])
    assert record.chunks == [1, 2, 3, 4]


@pytest.mark.parametrize("later", [delta(content="w "), counted("w ", 3)], ids=["none", "stuck"])
def test_b10_counts_that_stop_midway_leave_the_chunks_to_count(later: bytes) -> None:
    """Usage with the first chunks only, or one that stands still: the text goes on all the same."""
    first = [counted("w ", n) for n in range(1, 4)]
    record = read(*first, *[later] * 100, STOP, usage(412), DONE)
    assert record.tokens == []
    assert record.usage_seen == "final"
    assert (record.chunks[-1], record.completion_tokens) == (103, 412)
    assert read(*first, *[later] * 100, STOP, DONE).completion_tokens is None
    assert record.stamps[-1] == pytest.approx(10.3)  # the last text's


def test_b10_one_absurd_count_is_not_the_total() -> None:
    """It cannot be told from a rise until the counts after it have fallen long enough."""
    body = [counted("w ", 10**8 if n == 20 else n) for n in range(1, 101)]
    record = read(*body, STOP, usage(100), DONE)
    assert record.usage_odd
    assert (record.tokens, record.chunks[-1], record.completion_tokens) == ([], 100, 100)


def test_b10_counts_with_every_fourth_chunk_are_continuous() -> None:
    body = [counted("w ", n) if n % 4 == 1 else delta(content="w ") for n in range(1, 102)]
    record = read(*body, STOP, DONE)
    assert record.tokens == list(range(1, 102, 4))
    assert record.usage_seen == "continuous"


def test_b10_a_refused_field_is_a_failed_request_with_the_servers_words(transport: str) -> None:
    said = (
        "Extra inputs are not permitted, field: 'stream_options.continuous_usage_stats', "
        "value: True"
    )

    async def handler(_: object, reply: Any) -> None:
        await reply.respond(400, {"error": {"message": said, "code": 400}})

    (record,) = drive(handler, transport=transport)
    assert (record.end, record.status, record.error) == ("failed", 400, f"HTTP 400: {said}")


def test_b11_cumulative_usage_is_never_summed(transport: str) -> None:
    body = [counted("x", n) for n in range(1, 21)]
    (record,) = drive(serving(*body, STOP, usage(20), DONE), transport=transport)
    assert (record.completion_tokens, record.tokens[-1], len(record.tokens)) == (20, 20, 20)


def test_b11_a_final_usage_without_news_is_no_arrival() -> None:
    record = read(counted("x", 1), counted("y", 2), STOP, usage(2), DONE)
    assert record.stamps == [0.1, 0.2]


def test_a_chunk_whose_count_rose_is_generation_without_text() -> None:
    """Part of a character, or a special token: vLLM sends an empty text and a higher count."""
    record = read(ROLE, counted("", 1), counted("é", 2), counted("", 3), STOP, usage(3), DONE)
    assert (record.stamps, record.tokens) == ([0.2, 0.3, 0.4], [1, 2, 3])
    assert record.chunks == [0, 1, 1]


def test_a_text_whose_count_did_not_rise_is_none() -> None:
    record = read(counted("a", 1), counted("b", 1), counted("c", 2), STOP, DONE)
    assert (record.stamps, record.tokens, record.chunks) == ([0.1, 0.3], [1, 2], [1, 3])


def test_a_role_chunk_with_a_count_of_zero_does_not_start_the_clock() -> None:
    record = read(counted("", 0), counted("a", 1), counted("b", 2), STOP, DONE)
    assert (record.stamps, record.usage_seen) == ([0.2, 0.3], "continuous")


def test_b14_output_is_what_the_server_counted_not_what_was_asked_for() -> None:
    record = read(*[counted("x", n) for n in range(1, 51)], STOP, usage(50), DONE)
    assert record.completion_tokens == 50


def test_b14_nothing_at_all_is_a_failure(transport: str) -> None:
    (record,) = drive(serving(ROLE, STOP, DONE), transport=transport)
    assert record.end == "failed"
    assert record.stamps == []
    assert record.first_token_at is None
    assert "without a single token" in record.error


@pytest.mark.parametrize(
    "body", [(ROLE, STOP, usage(300)), (*(counted("", n) for n in range(1, 301)), STOP)]
)
def test_b14_tokens_credited_without_any_text_are_a_failure(body: tuple[bytes, ...]) -> None:
    record = read(*body, DONE)
    assert record.end == "failed"
    assert "usage says 300" in record.error


def test_b14_one_token_may_be_without_text() -> None:
    """A prefill asks for one token, and that may be a special one."""
    record = read(counted("", 1, "length"), DONE)
    assert (record.end, record.tokens) == ("finished", [1])


def test_b16_text_of_no_token_divides_nothing() -> None:
    record = read(delta(content=" "), delta(content="\t"), STOP, usage(2), DONE)
    assert (record.end, record.chunks[-1], record.completion_tokens) == ("finished", 2, 2)


def cached(record: StreamRecord) -> tuple[int | None, int | None]:
    return record.prompt_tokens, record.cached_tokens


def test_prompt_and_cached_tokens() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 24}}
    assert cached(read(*words(1), STOP, usage(1, 31, **details), DONE)) == (31, 24)
    assert cached(read(*words(1), STOP, usage(1, 31), DONE)) == (31, None)
    bad = {"prompt_tokens_details": {"cached_tokens": "24"}}
    assert cached(read(*words(1), STOP, usage(1, "31", **bad), DONE)) == (None, None)
    timings = {"cache_n": 236, "prompt_n": 1, "predicted_n": 1}
    last = event({"choices": [{"delta": {}, "finish_reason": "stop"}], "timings": timings})
    assert cached(read(*words(1), last, DONE)) == (None, 236)


def test_more_than_one_choice_counts_as_one_stream() -> None:
    two = event({"choices": [{"delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}}]})
    record = read(two, two, STOP, DONE)
    assert (record.chunks, record.end) == ([1, 2], "finished")


def test_identical_streams_have_one_hash_however_long_each_ran() -> None:
    long, longer = (read(*words(n), STOP, DONE) for n in (300, 400))
    other = read(delta(content="x"), *words(400), STOP, DONE)
    assert long.text_hash == longer.text_hash != other.text_hash
    assert read(STOP, DONE).text_hash == 0


def test_the_tail_is_the_end_of_the_text_across_channels_and_escapes() -> None:
    pieces = [delta(reasoning='a\n"b\\'), delta(content="é🎉"), delta(content="</x>")]
    assert read(*pieces, STOP, DONE).tail == 'a\n"b\\é🎉</x>'
    many = read(*[delta(content=f"{i:07d} ") for i in range(2000)], STOP, DONE)
    assert len(many.tail) == 8192
    assert many.tail.endswith("0001999 ")


def test_a_text_without_end_is_kept_in_bounds() -> None:
    block = "0123456789abcdef" * 4096
    record = read(delta(content="first "), *[delta(content=block)] * 40, STOP, DONE)
    start = read(delta(content="first "), delta(content=block), STOP, DONE)
    assert record.text_hash == start.text_hash
    assert record.tail == block[-8192:]


@pytest.mark.parametrize("channel", ["content", "reasoning_content", "reasoning"])
def test_b5_reasoning_that_is_counted_but_not_streamed_is_noticed(channel: str) -> None:
    """Ten chunks of text and 90 tokens that nobody saw are not ten tokens a chunk."""
    chunks = [delta(**{channel: "Hm"}), *words(9), STOP]
    told = usage(100, completion_tokens_details={"reasoning_tokens": 90})
    record = read(*chunks, told, DONE)
    assert record.completion_tokens == 100
    assert record.hidden_tokens == (90 if channel == "content" else None)
    assert count([[record]]).source == ("chunks" if channel == "content" else "estimated")
