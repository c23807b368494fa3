"""A tokenizer with no vocabulary: a word is cut every four bytes, a space goes with what follows.

Reversible, deterministic and vectorised: 2 MB of text take some 30 ms, mostly without the
interpreter's lock. Ids are the token's own bytes, so that `decode` needs no table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint64]

PIECE = 4
"""Bytes of a word in one token."""

_SPACE = np.zeros(256, dtype=bool)
_SPACE[[9, 10, 11, 12, 13, 32]] = True

_HEAD = "<|im_start|>system\nYou are a tiny model, only simulated. Be brief.\n<|im_end|>\n"
_TAIL = "<|im_start|>assistant\n"


def encode(text: str) -> Ids:
    """Token ids of a text."""
    data = text.encode("utf-8", "surrogatepass")
    raw = np.frombuffer(data, np.uint8)
    at = np.flatnonzero(_starts(raw))
    length = np.diff(at, append=raw.size)
    padded = np.concatenate((raw, np.zeros(8, np.uint8)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 8)[at]
    ids: Ids = windows.view(">u8").ravel().astype(np.uint64) >> (64 - 8 * length).astype(np.uint64)
    return ids


def _starts(raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Where a token starts."""
    space = _SPACE[raw]
    index = np.arange(raw.size, dtype=np.int32)
    in_word = index - np.maximum.accumulate(np.where(space, index, np.int32(-1))) - 1
    start: npt.NDArray[np.bool_] = space | (in_word % PIECE == 0)
    start[1:] &= (in_word[1:] != 0) | (raw[:-1] != ord(" "))
    return start


def decode(ids: Iterable[int]) -> str:
    """The text of token ids."""
    return b"".join(i.to_bytes((i.bit_length() + 7) // 8, "big") for i in ids).decode(
        "utf-8", "replace"
    )


def apply_template(messages: Sequence[Mapping[str, Any]]) -> str:
    """The prompt of a chat: a head of 24 tokens that all chats share, then the messages."""
    turns = (f"<|im_start|>{m.get('role')}\n{_content(m)}\n<|im_end|>\n" for m in messages)
    return "".join((_HEAD, *turns, _TAIL))


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))


def prefix_hashes(ids: Ids, block: int) -> list[int]:
    """One hash for each full block, over everything from the start to that block's end.

    A polynomial modulo 2^64: blocks agree in hash if and, but for chance, only if all tokens up
    to their end agree.
    """
    full = ids[: ids.size // block * block].reshape(-1, block) + np.uint64(0x9E3779B97F4A7C15)
    within = np.cumprod(np.full(block, 0xBF58476D1CE4E5B9, np.uint64))
    along = np.cumprod(np.full(full.shape[0], 0x94D049BB133111EB, np.uint64))
    mixed = (full * full * within).sum(axis=1, dtype=np.uint64)
    mixed ^= mixed >> np.uint64(29)
    hashes: list[int] = np.cumsum(mixed * along, dtype=np.uint64).tolist()
    return hashes


def _vocabulary() -> list[bytes]:
    """Words of one token each, as they stand inside a JSON string."""
    consonants, vowels = "bdfgklmnprstvz", "aeiou"
    return [
        f" {a}{b}{c}{d}".encode()
        for a in consonants
        for b in vowels
        for c in consonants
        for d in ("", *vowels)
    ]


LONGEST_STEP = 64
"""Tokens that one step may yield, at most."""


def text_ring(places: int = 1 << 15) -> list[bytes]:
    """One-token words in a fixed random order. A stream starts at a place of its own and goes
    round; the ring goes on beyond ``places``, so that a step's slice needs no wrapping."""
    words = _vocabulary()
    picks = np.random.default_rng(20).integers(0, len(words), places).tolist()
    ring = [words[i] for i in picks]
    return ring + ring[:LONGEST_STEP]
