"""The measurement of a session: cells in, measurements out."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any, TypeVar

from pytest_llmperf.client.api import ServerApi
from pytest_llmperf.client.deadline import within
from pytest_llmperf.engines.base import Engine
from pytest_llmperf.engines.identity import find_change
from pytest_llmperf.measure.asking import Asker, is_warm
from pytest_llmperf.measure.counting import count
from pytest_llmperf.measure.crew import Crew
from pytest_llmperf.measure.decode import DecodeCell, Recording
from pytest_llmperf.measure.events import DoesNotFit, Invalid, Listener
from pytest_llmperf.measure.memory import Memory
from pytest_llmperf.measure.prefill import PrefillCell, Prefilled
from pytest_llmperf.measure.prompts import PromptMaker, tolerance
from pytest_llmperf.measure.requests import RequestForm, UsageMode
from pytest_llmperf.measure.setup import Setup
from pytest_llmperf.measure.summary import figures, summarise
from pytest_llmperf.measure.validity import (
    admitted,
    clock_notices,
    failure,
    invalid,
    is_buffered,
    notices,
)
from pytest_llmperf.model.capacity import fits
from pytest_llmperf.model.choices import CapacityMode
from pytest_llmperf.model.errors import LlmPerfError
from pytest_llmperf.model.grid import Cell
from pytest_llmperf.model.metrics import METRICS
from pytest_llmperf.model.result import Measurement, Notice, ServerInfo, Status
from pytest_llmperf.model.settings import METHOD, Connection, Timing, Workload
from pytest_llmperf.stats import median_error

Found = TypeVar("Found")


class Measurer:
    """Measures cells of one session, one at a time.

    Every call runs on the event loop it is awaited on, with a client of its own; what is kept
    between calls (prompts, what the server accepts, how it behaves) is bound to none.
    """

    def __init__(
        self,
        api: ServerApi,
        engine: Engine,
        server: ServerInfo,
        connection: Connection,
        workload: Workload,
        timing: Timing,
        capacity_mode: CapacityMode = "reserved",
        kv_tokens: int | None = None,
        progress: Listener | None = None,
        crew: Crew | None = None,
    ) -> None:
        """
        Args:
            api: what ``engine`` talks through; its connections are closed after every cell, since
                the next one has another event loop.
            engine: gauges and tokenizer of the server.
            server: what ``engine.describe()`` said.
            connection: how to reach it.
            workload: what a measured request asks for.
            timing: durations and limits, seconds.
            capacity_mode: how a cell's need is reckoned.
            kv_tokens: KV budget that overrides the server's.
            progress: called several times a second while a cell runs; must be quick.
            crew: who generates a decode cell's load; without one, this process itself.
        """
        self._api = api
        self._setup = Setup(
            engine=engine,
            server=server,
            connection=connection,
            workload=workload,
            timing=timing,
            capacity_mode=capacity_mode,
            kv_tokens=kv_tokens,
            listener=progress or (lambda event: None),
            crew=crew or Crew(workers=1),
        )
        self._memory = Memory(
            prompts=PromptMaker(workload.endpoint), form=RequestForm(server.model, workload)
        )

    async def prefill(self, cell: Cell) -> Measurement:
        """Measure cold prefill. Never raises for what a server does."""
        return await self._measure(
            cell,
            lambda asker: PrefillCell(self._setup, self._memory, asker, cell).run(),
            self._prefilled,
        )

    async def decode(self, cell: Cell) -> Measurement:
        """Measure sustained decode. Never raises for what a server does."""
        return await self._measure(
            cell,
            lambda asker: DecodeCell(self._setup, self._memory, asker, cell).run(),
            self._decoded,
        )

    async def _measure(
        self,
        cell: Cell,
        run: Callable[[Asker], Awaitable[Found]],
        conclude: Callable[[Cell, Found], dict[str, Any]],
    ) -> Measurement:
        setup = self._setup
        fields: dict[str, Any] = {
            "phase": cell.phase,
            "context": cell.context,
            "concurrency": cell.concurrency,
            "method": METHOD,
            "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        }
        over = fits(
            cell,
            setup.capacity_mode,
            setup.server,
            setup.workload.max_tokens,
            setup.kv_tokens,
            setup.workload.prompts,
        )
        if over is not None:
            return Measurement(
                **fields, status=Status.OVER_CAPACITY, reason=over.reason, capacity=over
            )
        asker: Asker | None = None
        try:
            asker = Asker(setup.connection, setup.engine, setup.timing, self._memory)
            found = await within(self._limit(cell, asker), run(asker))
            fields |= conclude(cell, found)
        except DoesNotFit as error:
            fields |= {
                "status": Status.OVER_CAPACITY,
                "reason": str(error),
                "capacity": error.capacity,
            }
        except asyncio.TimeoutError:
            reason = "the cell did not end within its deadline; is the server stuck?"
            fields |= {"status": Status.INVALID, "reason": reason}
        except (Invalid, LlmPerfError) as error:
            fields |= {"status": Status.INVALID, "reason": str(error)}
        finally:
            if asker is not None:
                await asker.aclose()
            await self._api.aclose()
        return Measurement(**fields)

    def _limit(self, cell: Cell, asker: Asker) -> float:
        """Seconds after which a cell hangs. Every wait has a limit of its own; this one is for
        what nobody thought of."""
        timing = self._setup.timing
        first = asker.first_token_limit(cell.context)
        prompts = cell.concurrency if self._setup.workload.prompts == "distinct" else 1
        waits = 2 * timing.drain_s + timing.duration_s + timing.stall_s + 9 * timing.settle_s
        return 60 + 2 * waits + first * (4 + 2 * prompts)

    async def find_change(self) -> str:
        """What is different about the server since the session began; see ``engines.identity``."""
        try:
            return await find_change(self._api, self._setup.engine, self._setup.server)
        finally:
            await self._api.aclose()

    # Prefill

    def _prefilled(self, cell: Cell, found: Prefilled) -> dict[str, Any]:
        samples = found.samples
        rates = [s.tok_s for s in samples if s.tok_s is not None]
        ttfts_ms = [s.ttft * 1e3 for s in samples]
        errors = {"ttft_ms": median_error(ttfts_ms), "prefill_tok_s": median_error(rates)}
        prompt_tokens = samples[-1].prompt_tokens
        return {
            "status": Status.VALID,
            "warnings": self._length_notices(cell, found.target, prompt_tokens),
            "prefill_tok_s": median(rates) if rates else None,
            "prefill_samples": rates,
            "ttft_ms": median(ttfts_ms),
            "ttft_n": len(ttfts_ms),
            "ttfts_ms": ttfts_ms,
            "prompt_tokens": prompt_tokens,
            "cached_tokens": samples[-1].cached_tokens,
            "std_errors": {name: error for name, error in errors.items() if error is not None},
        }

    # Decode

    def _decoded(self, cell: Cell, found: Recording) -> dict[str, Any]:
        server, workload = self._setup.server, self._setup.workload
        known: dict[str, Any] = {
            "client": found.health,
            "usage_mode": _usage_mode(found),
            "prompt_tokens": _last(found, "prompt_tokens"),
            "cached_tokens": _last(found, "cached_tokens"),
        }
        if words := failure(found.records):
            return known | {"status": Status.INVALID, "reason": words}
        counted = count(found.records, self._memory.tokens_per_chunk)
        self._memory.tokens_per_chunk = counted.tokens_per_chunk
        seen = [scrape.gauges for scrape in found.scrapes]
        decoded = summarise(
            cell.concurrency, found.records, counted, found.t0, found.t1, seen, found.edges
        )
        if (streams := admitted(decoded)) is not None:
            words = f"the server admits {streams} of {cell.concurrency}: the others wait in turn"
            return known | {
                "status": Status.OVER_CAPACITY,
                "reason": words,
                "capacity": self._setup.over_capacity(cell, words),
            }
        buffered = is_buffered(decoded, server)
        known |= figures(decoded, buffered=buffered)
        known["ttft_warm"] = warm = _warm(found)
        reason = invalid(decoded, found.prompt_target, server, found.health)
        if reason is not None:
            # what was observed may explain it, but no metric of an invalid cell is a number
            known |= dict.fromkeys(METRICS, None)
            known |= {"std_errors": {}, "total_tok_s_ci95": None, "busy_tok_s": None}
            return known | {"status": Status.INVALID, "reason": reason}
        warnings = [
            *clock_notices(found.health),
            *notices(decoded, server, workload.max_tokens, buffered=buffered),
            *self._length_notices(cell, found.prompt_target, known["prompt_tokens"]),
        ]
        if warm is False:
            text = "not warm: the prompt was not in the server's cache for every stream"
            warnings.append(Notice(code="not-warm", text=text))
        if not found.drained:
            text = "the server went on with cancelled requests; the next cell waits for it"
            warnings.append(Notice(code="not-drained", text=text))
        return known | {"status": Status.VALID, "warnings": warnings}

    def _length_notices(self, cell: Cell, target: int, counted: int | None) -> list[Notice]:
        if target < cell.context:
            text = f"prompt trimmed to {target:,} tokens, so that the server takes it"
            return [Notice(code="trimmed", text=text)]
        if counted is None:
            text = "the server does not say how many tokens the prompt has"
            return [Notice(code="prompt-uncounted", text=text)]
        if cell.context and abs(counted - target) > tolerance(target, self._memory.prompts.exact):
            text = f"the prompt has {counted:,} tokens, {target:,} were wanted"
            return [Notice(code="prompt-length", text=text)]
        return []


def _usage_mode(found: Recording) -> UsageMode:
    """How the server told its counts, from what it did and not from what it was asked."""
    seen = {record.usage_seen for stream in found.records for record in stream}
    if "continuous" in seen:
        return "continuous"
    return "final" if "final" in seen or found.scout.usage_seen else "none"


def _last(found: Recording, name: str) -> int | None:
    """The streams' own count where one came, else the scout's."""
    values = [getattr(record, name) for stream in found.records for record in stream]
    scouted: int | None = getattr(found.scout, name)
    return next((value for value in reversed(values) if value is not None), scouted)


def _warm(found: Recording) -> bool | None:
    """Whether the streams' prompts came from the cache; None where nothing says so."""
    seen = [is_warm(r.cached_tokens, r.prompt_tokens) for stream in found.records for r in stream]
    if told := [warm for warm in seen if warm is not None]:
        return all(told)
    if found.warm is not None:
        return found.warm
    hits = found.whole.rose("prefix_hits") if found.whole else None
    queries = found.whole.rose("prefix_queries") if found.whole else None
    prompt = _last(found, "prompt_tokens") or found.prompt_target
    return is_warm(hits / queries * prompt, prompt) if hits is not None and queries else None
