"""The reference text: varied, the same everywhere, quick."""

from __future__ import annotations

import time

from pytest_llmperf.measure.text import ReferenceText, text_hash


def test_the_text_is_the_same_on_every_machine() -> None:
    """A change of the text changes what every stored baseline was measured with."""
    assert text_hash() == "039f218084c8"


def test_growing_in_steps_gives_the_same_text() -> None:
    text = ReferenceText()
    assert text.first(50) + text.first(500, start=50) == ReferenceText().first(500)


def test_text_for_the_longest_prompt_is_quick() -> None:
    """512K tokens are about 2 MB."""
    began = time.process_time()
    assert len(ReferenceText().first(440_000)) > 2_000_000
    assert time.process_time() - began < 1.0


def test_the_text_does_not_repeat_itself() -> None:
    """Repetition would raise the acceptance of speculative decoding: of the runs of eight words in
    60,000, nearly all occur once."""
    words = ReferenceText().first(60_000).split()
    runs = {tuple(words[i : i + 8]) for i in range(len(words) - 8)}
    assert len(runs) > 0.97 * len(words)


def test_the_text_reads_like_english() -> None:
    text = ReferenceText().first(2000)
    assert text.isascii()
    assert "{" not in text
    assert " ." not in text
    assert " a a" not in text
    assert all(sentence[0].isupper() for sentence in text.strip().split(". "))
