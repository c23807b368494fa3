"""The simulated engine: what it holds, what its steps cost, and how one run varies it."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from pytest_llmperf.baseline.schema import Baseline, CellBaseline
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.sim.cost import HostCost, PrefillCost, StepCost, Surface
from pytest_llmperf.sim.noise import Noise, draw_unit
from pytest_llmperf.sim.parameters import Variation
from pytest_llmperf.sim.values import InBand


@dataclass(frozen=True)
class DecodeRow:
    """What a profile says of one decode cell."""

    total_tok_s: float
    itl_ms: float
    ttft_ms: float
    per_request_tok_s: float | None = None
    tokens_per_step: float | None = None
    """None: the profile has no step counters, the split is inferred."""


@dataclass(frozen=True)
class PrefillRow:
    """What a profile says of one cold prompt."""

    tok_s: float
    ttft_ms: float


@dataclass(frozen=True)
class ProfileTables:
    """A hardware profile as plain tables; contexts in tokens."""

    name: str
    decode: Mapping[tuple[int, int], DecodeRow]
    """By (context, concurrency)."""
    prefill: Mapping[int, PrefillRow]
    over_capacity: frozenset[tuple[int, int]]
    """(context, concurrency) of the cells that did not fit."""
    max_tokens: int = 4096
    duration_s: float = 30.0
    max_model_len: int | None = None
    """None: from the largest context, ``max_model_len - max_tokens - 1024`` in such reports."""
    draft_tokens: int = 0
    """Tokens drafted per step; 0 without speculative decoding."""
    kv_tokens: int | None = None
    """None: the middle of what the cells that fit and those that do not leave open."""

    def needs(self, context: int, concurrency: int) -> int:
        """KV tokens a cell asks for by the reports' rule: all reserved, nothing shared."""
        return concurrency * (context + self.max_tokens)

    @classmethod
    def from_baseline(cls, baseline: Baseline) -> ProfileTables:
        """The tables of a baseline file; the median where it has several runs."""
        decode: dict[tuple[int, int], DecodeRow] = {}
        prefill: dict[int, PrefillRow] = {}
        over_capacity = set()
        for cell_id, stored in baseline.cells.items():
            cell = Cell.parse(cell_id)
            key = (cell.context, cell.concurrency)
            if stored.over_capacity is not None:
                over_capacity.add(key)
            elif cell.phase == "prefill" and (speed := _typical(stored, "prefill_tok_s")):
                seconds = cell.context / speed
                prefill[cell.context] = PrefillRow(
                    speed, _typical(stored, "ttft_ms") or 1000 * seconds
                )
            elif (
                (total := _typical(stored, "total_tok_s"))
                and (itl := _typical(stored, "itl_ms"))
                and (ttft := _typical(stored, "ttft_ms"))
            ):
                rate = _typical(stored, "per_request_tok_s")
                yields = _typical(stored, "tokens_per_step")
                decode[key] = DecodeRow(total, itl, ttft, rate, yields)
        runs = list(baseline.runs.values())
        command = next((run.launch_command for run in runs if run.launch_command), "")
        drafts = re.search(r"num_speculative_tokens\W+(\d+)", command)
        settings = baseline.settings
        return cls(
            name=baseline.hardware.profile,
            decode=decode,
            prefill=prefill,
            over_capacity=frozenset(over_capacity),
            max_tokens=settings.max_tokens or cls.max_tokens,
            duration_s=settings.duration_s or cls.duration_s,
            max_model_len=next((r.max_model_len for r in runs if r.max_model_len), None),
            draft_tokens=int(drafts[1]) if drafts else 0,
            kv_tokens=next((r.kv_tokens for r in runs if r.kv_tokens), None),
        )


def _typical(stored: CellBaseline, metric: str) -> float | None:
    values = stored.values(metric)
    return float(median(values)) if values else None


@dataclass(frozen=True)
class Correction:
    """Where the model alone misses the report and is bent to it; listed by ``residuals``."""

    cell: Cell
    what: str
    model: float
    corrected: float
    unit: str


@dataclass(frozen=True)
class EngineModel:
    """An engine on a machine: everything its scheduler needs to know.

    Raises:
        ValueError: when the KV cache cannot hold one sequence of ``max_model_len``, which no
            engine starts with.
    """

    name: str
    max_model_len: int
    kv_tokens: int
    step: StepCost
    prefill: PrefillCost
    host: HostCost
    tokens_per_step: Surface
    """Mean tokens of a decode step; 1 everywhere without speculative decoding."""
    text_spread: Surface | None = None
    """One plus what a request's text does to its tokens per step: time between tokens is less by
    this fraction in every other request, and more in the rest. None: nothing."""
    draft_tokens: int = 0
    block_size: int = 16
    max_num_seqs: int = 1024
    token_budget: int = 8192
    """Tokens computed in one step, prompts and decodes together (``max_num_batched_tokens``)."""
    prefix_cache: bool = True
    mean_answer: float = 400.0
    """Tokens after which a request without ``ignore_eos`` ends by itself, on average."""
    decode_speed: float = 1.0
    prefill_speed: float = 1.0
    host_speed: float = 1.0
    acceptance: float = 1.0
    slow_ctx: tuple[InBand, ...] = ()
    slow_conc: tuple[InBand, ...] = ()
    noise: Noise = field(default=Noise(), repr=False)
    """What each start draws, and what comes and goes."""
    corrections: tuple[Correction, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if self.max_model_len > self.largest_sequence(self.kv_tokens, self.block_size):
            raise ValueError(
                f"{self.kv_tokens} KV tokens do not hold one sequence of {self.max_model_len}; "
                "give the simulator a smaller max_model_len or more kv_tokens"
            )

    @staticmethod
    def largest_sequence(kv_tokens: int, block_size: int) -> int:
        """The longest sequence that a KV cache holds; one block is the engine's own."""
        return (kv_tokens // block_size - 1) * block_size

    def vary(self, variation: Variation) -> EngineModel:
        """This engine as one run sees it. A KV cache below one full-length sequence lowers
        max_model_len, as vLLM's automatic mode does."""
        rng = random.Random(f"run-{variation.key}")
        decode, prefill, host = (
            math.exp(variation.noise * draw_unit(rng, variation.noise_tails)) * variation.speed
            for _ in range(3)
        )
        kv_tokens = variation.kv_tokens or self.kv_tokens
        return replace(
            self,
            kv_tokens=kv_tokens,
            max_model_len=min(
                variation.max_model_len or self.max_model_len,
                self.largest_sequence(kv_tokens, self.block_size),
            ),
            max_num_seqs=variation.slots or self.max_num_seqs,
            prefix_cache=self.prefix_cache and variation.prefix_cache,
            decode_speed=self.decode_speed * decode * variation.decode_speed,
            prefill_speed=self.prefill_speed * prefill * variation.prefill_speed,
            host_speed=self.host_speed * host,
            acceptance=self.acceptance * variation.acceptance,
            slow_ctx=self.slow_ctx + variation.slow_ctx,
            slow_conc=self.slow_conc + variation.slow_conc,
            noise=variation,
        )

    def decode_s(self, sequences: int, tokens: float) -> float:
        """Seconds of a decode step over ``sequences`` of on average ``tokens`` cached tokens."""
        speed = self.decode_speed
        for slow in self.slow_ctx:
            if tokens in slow.band:
                speed *= slow.value
        for slow in self.slow_conc:
            if sequences in slow.band:
                speed *= slow.value
        return self.step.seconds(sequences, tokens) / speed

    def prefill_s(self, start: int, end: int) -> float:
        """Seconds to compute a prompt's tokens from ``start`` to ``end``."""
        return self.prefill.seconds(start, end) / self.prefill_speed

    def host_s(self, at_once: int, tokens: int) -> float:
        """Seconds a request spends at the front end while ``at_once`` share it."""
        return self.host.seconds(at_once, tokens) / self.host_speed

    def mean_tokens(self, sequences: int, tokens: float) -> tuple[float, float]:
        """Mean tokens that a decode step yields, between 1 and 1 + draft_tokens: for a request of
        easy text and for one of hard text."""
        mean = self.tokens_per_step.at(sequences, tokens)
        spread = self.text_spread.at(sequences, tokens) - 1.0 if self.text_spread else 0.0
        return self._accepted(mean / (1.0 - spread)), self._accepted(mean / (1.0 + spread))

    def _accepted(self, mean: float) -> float:
        return min(1.0 + max(0.0, mean - 1.0) * self.acceptance, 1.0 + self.draft_tokens)
