"""Metrics text, read with prometheus_client's parser; tolerant of bad lines, bounded in effort."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

MAX_LINE = 16_384
MAX_SAMPLES = 10_000
MAX_TEXT = 2**20
"""Characters of one page that are parsed, so that lines made to be slow cannot take minutes. A rank
of vLLM's has 6,400."""
LARGEST = 2.0**63
"""No count or size of a server is as large; sums of what is smaller stay finite."""
_SAME_THING = frozenset({"pid", "tp_rank", "pp_rank", "moe_ep_rank"})
"""Samples that differ in these labels only are one thing seen by several processes."""
_NAME = re.compile(r"[^{\s]*")
_LEFT_OUT = ("_bucket", "_created")

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Scrape:
    """Samples by metric name. Of what is not there, every question's answer is None."""

    samples: Mapping[str, list[tuple[Labels, float]]] = field(default_factory=dict)

    def total(self, *names: str) -> float | None:
        """The sum over ranks, of the first of these names that is there."""
        values = self._by_rank(names)
        return sum(values) if values else None

    def peak(self, *names: str) -> float | None:
        """The largest over ranks, of the first of these names that is there."""
        return max(self._by_rank(names), default=None)

    def count(self, *names: str) -> int | None:
        """``total`` of a gauge that counts things."""
        value = self.total(*names)
        return None if value is None else round(value)

    def labels(self, name: str) -> list[Labels]:
        """The label sets of an info metric."""
        return [labels for labels, _ in self.samples.get(name, [])]

    def has(self, prefix: str) -> bool:
        return any(name.startswith(prefix) for name in self.samples)

    def _by_rank(self, names: Sequence[str]) -> list[float]:
        for name in names:
            ranks: dict[frozenset[tuple[str, str]], float] = {}
            for labels, value in self.samples.get(name, []):
                # per-priority series stand beside their total, whose priority is empty
                if value >= 0 and not labels.get("priority"):
                    rank = frozenset((k, v) for k, v in labels.items() if k not in _SAME_THING)
                    ranks[rank] = max(value, ranks.get(rank, value))
            if ranks:
                return list(ranks.values())
        return []


def parse(text: str, prefixes: tuple[str, ...]) -> Scrape:
    """Read the samples whose names start with one of ``prefixes``.

    Histogram buckets, creation times, NaN and what is too large are left out, and so is any line
    that is none of this format, so that the answer to an HTML page is an empty scrape.
    """
    found: dict[str, list[tuple[Labels, float]]] = {}
    samples, characters = MAX_SAMPLES, MAX_TEXT
    for line in text.split("\n"):
        if not line.startswith(prefixes) or _is_left_out(line):
            continue
        if samples > 0 and len(line) <= min(characters, MAX_LINE):
            characters -= len(line)
            for name, labels, value in _read_line(line):
                found.setdefault(name, []).append((labels, value))
                samples -= 1
    return Scrape(found)


def _is_left_out(line: str) -> bool:
    return _NAME.match(line)[0].endswith(_LEFT_OUT)  # type: ignore[index]


def _read_line(line: str) -> Iterator[tuple[str, Labels, float]]:
    try:
        samples = [s for family in text_string_to_metric_families(line) for s in family.samples]
    # the parser documents no error of its own; a hostile line must not end a run
    except Exception:
        return
    for sample in samples:
        if abs(sample.value) < LARGEST:
            yield sample.name, sample.labels, float(sample.value)
