"""The simulator's tokenizer: exact, reversible, and the same words for every count of it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmperf.sim.tokenizer import (
    apply_template,
    decode,
    encode,
    prefix_hashes,
    text_ring,
)

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=200)


@given(TEXTS)
def test_a_text_comes_back_from_its_ids(text: str) -> None:
    assert decode(encode(text).tolist()) == text


@given(st.text("ab é中 \n\t", max_size=60))
def test_tokens_are_those_of_the_plain_rule(text: str) -> None:
    """White space is a token, but a space belongs to the word after it; words are cut every four
    bytes."""
    plain = re.findall(rb" ?[^ \n\t]{1,4}|[ \n\t]", text.encode())
    # the rule cuts a word from its own start, with or without the space before it
    assert [i.to_bytes(8, "big").lstrip(b"\0") for i in encode(text).tolist()] == plain


@given(TEXTS, TEXTS, TEXTS)
def test_prompts_share_the_blocks_of_their_common_start(head: str, a: str, b: str) -> None:
    left, right = encode(head + "\n" + a), encode(head + "\n" + b)
    same = 0
    for x, y in zip(left.tolist(), right.tolist(), strict=False):
        if x != y:
            break
        same += 1
    hashes = prefix_hashes(left, 4), prefix_hashes(right, 4)
    assert [len(h) for h in hashes] == [left.size // 4, right.size // 4]
    shared = same // 4
    assert hashes[0][:shared] == hashes[1][:shared]
    assert not set(hashes[0][shared:]) & set(hashes[1][shared:])


def test_chats_share_a_head_of_24_tokens() -> None:
    first, second = (
        encode(apply_template([{"role": role, "content": "Hello"}])).tolist()
        for role in ("user", "tool")
    )
    assert (
        next(i for i, pair in enumerate(zip(first, second, strict=False)) if len({*pair}) > 1) >= 24
    )
    assert encode(apply_template([])).tolist()[:24] == first[:24]


def test_content_may_come_in_parts() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    whole = apply_template([{"role": "user", "content": "Hello"}])
    assert apply_template([{"role": "user", "content": parts}]) == whole


@pytest.mark.parametrize("count", [1, 2, 500])
def test_generated_words_are_a_token_each(count: int) -> None:
    assert encode(b"".join(text_ring()[7 : 7 + count]).decode()).size == count
