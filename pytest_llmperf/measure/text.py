"""Reference text: varied natural-looking English from a seeded grammar of our own.

Repetitive text would inflate the acceptance of speculative decoding, and a bundled book would
have to be shipped; a grammar gives as much text as a 512K-token prompt needs, the same on every
machine. Only ``random.Random.random`` is used, whose sequence Python guarantees for a seed.
"""

from __future__ import annotations

import hashlib
import random
from functools import cache
from importlib import resources

_SEED = 20_240_917
_VOWELS = frozenset("aeiou")
_ARTICLES = (" a", " A")

INSTRUCTION = (
    "\n\nWrite a long, detailed and original essay about how people, machines and landscapes shape"
    " one another. Bring in new examples, places and characters all the time, never repeat a"
    " sentence, use no lists and no headings, and do not stop before you have written many"
    " thousands of words."
)

_NUMBERS = [str(n) for n in (*range(3, 60), *range(60, 400, 7), *range(1600, 2000, 9))]

Template = list[str | list[str]]
"""A sentence as its words, each with the blank before it; a pool where one word is drawn."""


@cache
def _templates() -> list[Template]:
    """The sentences of ``grammar.txt``."""
    pools: dict[str, list[str]] = {"number": _NUMBERS}
    sentences: list[str] = []
    pool: list[str] = []
    for line in (
        resources.files(__package__).joinpath("grammar.txt").read_text("ascii").splitlines()
    ):
        name, colon, words = line.partition(": ")
        if line.startswith("  "):
            pool += line.split()
        elif colon:
            pool = pools[name] = words.split()
        elif line and not line.startswith("#"):
            sentences.append(line)
    return [_compile(sentence, pools) for sentence in sentences]


def _compile(sentence: str, pools: dict[str, list[str]]) -> Template:
    parts: Template = []
    for i, word in enumerate(sentence.split()):
        if word.startswith("{"):
            pool = pools[word.strip("{}")]
            parts.append([" " + (w.capitalize() if i == 0 else w) for w in pool])
        else:
            parts.append(word if word in ".,;" else " " + word)
    return parts


class ReferenceText:
    """The text as a row of words, each with the blank or break before it; grows as needed."""

    def __init__(self, seed: int = _SEED) -> None:
        self._random = random.Random(seed).random
        self._words: list[str] = []

    def first(self, words: int, start: int = 0) -> str:
        """Words ``start`` up to ``words``, as text. Punctuation counts as a word."""
        while len(self._words) < words:
            self._words += self._paragraph()
        return "".join(self._words[start:words])

    def _paragraph(self) -> list[str]:
        rnd, templates = self._random, _templates()
        out: list[str] = []
        for _ in range(4 + int(rnd() * 5)):
            for part in templates[int(rnd() * len(templates))]:
                word = part if isinstance(part, str) else part[int(rnd() * len(part))]
                if word[1:2] in _VOWELS and out and out[-1] in _ARTICLES:
                    out[-1] += "n"
                out.append(word)
        out[0] = "\n\n" + out[0][1:]
        return out


@cache
def text_hash() -> str:
    """Names the reference text and its instruction; prompts made from other text differ in it."""
    sample = ReferenceText().first(20_000) + INSTRUCTION
    return hashlib.sha256(sample.encode()).hexdigest()[:12]
