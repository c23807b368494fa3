"""The scheduler of the simulated engine: continuous batching in discrete steps.

Time is whatever the caller says it is. A server calls `Scheduler.step`, waits for the step's
duration and sends what it yielded; a calculation does the same with a clock of its own.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from itertools import accumulate
from typing import Literal

from pytest_llmperf.sim.cost import acceptance_for
from pytest_llmperf.sim.host import HostQueue
from pytest_llmperf.sim.memory import BlockPool
from pytest_llmperf.sim.messages import Admission, SimRequest, Stats, Step, Tokens, TooLong
from pytest_llmperf.sim.noise import Start, Work
from pytest_llmperf.sim.profile import EngineModel

__all__ = ["Admission", "Scheduler", "SimRequest", "Stats", "Step", "Tokens", "TooLong"]


class _Sequence:
    """A request inside the engine."""

    __slots__ = (
        "admitted", "capacity", "computed", "finish", "generated", "hard", "hashes", "id", "length",
        "limit", "owed", "private", "prompt", "shared", "state", "target", "text",
    )  # fmt: skip

    def __init__(self, request: SimRequest, limit: int) -> None:
        self.id = request.id
        self.prompt = request.prompt_tokens
        self.hashes = request.block_hashes
        self.limit = limit
        self.finish: Literal["stop", "length"] = "length" if limit == request.max_tokens else "stop"
        self.generated = 0
        self.length = self.target = self.prompt
        """Tokens in all; tokens to compute before it decodes (again)."""
        self.computed = 0
        self.capacity = 0
        """Tokens that its blocks hold."""
        self.shared: list[int] = []
        self.private = 0
        self.admitted = False
        self.hard = False
        """Of the two kinds of text, the one that is drafted less well."""
        self.text = 1.0
        """Factor of its text on the draft tokens accepted."""
        self.owed = 0.0
        """Part of a token not yet given, where acceptance is not random."""
        self.state: Literal["arriving", "waiting", "running", "gone"] = "arriving"


class Scheduler:
    """Admission, batching, memory and timing of one engine.

    Args:
        engine: what is simulated.
        seed: of everything random within this start.
        average: every step yields its mean tokens (fractions are carried over) instead of a
            random number: for expected values.
        began: when the engine came up.
    """

    def __init__(
        self,
        engine: EngineModel,
        seed: int | str = 0,
        *,
        average: bool = False,
        began: float = 0.0,
    ) -> None:
        self.engine = engine
        self.pool = BlockPool(engine.kv_tokens // engine.block_size)
        self.stats = Stats()
        self._random = random.Random(f"steps-{seed}")
        self._average = average
        self._start = Start(engine.noise, began)
        self._now = self._busy_until = began
        self._sequences: dict[str, _Sequence] = {}
        self._host: HostQueue[_Sequence] = HostQueue(self._host_s)
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._texts = 0
        self._acceptance: dict[int, list[float]] = {}

    def __len__(self) -> int:
        """Requests that are anywhere in the engine."""
        return len(self._sequences)

    def submit(self, request: SimRequest, now: float) -> None:
        """Take a request; it reaches the queue when the front end is done with it.

        Raises:
            TooLong: when prompt and output exceed max_model_len.
            ValueError: when its id is in use.
        """
        limit = self.engine.max_model_len
        if request.prompt_tokens + request.max_tokens > limit:
            raise TooLong(request.prompt_tokens, request.max_tokens, limit)
        if request.id in self._sequences:
            raise ValueError(f"request id {request.id!r} is in use")
        answer = request.max_tokens
        if not request.ignore_eos:
            answer = min(answer, 1 + int(self._random.expovariate(1 / self.engine.mean_answer)))
        sequence = _Sequence(request, answer)
        if answer > 1:
            self._texts += 1
            sequence.hard = self._texts % 2 == 0
            if (spread := self.engine.noise.acceptance_spread) and not self._average:
                sequence.text = max(0.0, self._random.gauss(1.0, spread))
        if not self._sequences:
            self._start.wake(now - self._busy_until, now)
        self._sequences[request.id] = sequence
        self._arrive(now)
        self._host.add(sequence, sequence.prompt, now)

    def cancel(self, request_id: str, now: float) -> None:
        """Drop a request, wherever it is; unknown ids are ignored."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return
        self._arrive(now)
        if sequence.state == "arriving":
            self._host.remove(sequence)
        elif sequence.state == "waiting":
            self._waiting.remove(sequence)
        elif sequence.state == "running":
            self._running.remove(sequence)
            self._release(sequence)
        sequence.state = "gone"
        self._busy_until = now
        self.stats.requests += 1
        self._gauges()

    def step(self, now: float) -> Step | None:
        """Schedule and run one step that starts now; None when there is nothing at all to do."""
        self._arrive(now)
        if not self._running and not self._waiting:
            self._gauges()
            return Step(self._host.next_done() - now, waiting=True) if self._host else None
        step = Step(0.0)
        decoding, chunks = self._schedule(step)
        self.stats.steps += 1
        self._gauges()
        tokens = self._run(step, decoding, chunks)
        self._busy_until = now + step.duration_s
        self._settle(step, tokens)
        return step

    def _arrive(self, now: float) -> None:
        """Queue the requests that the front end is done with by now."""
        self._now = now
        for sequence in self._host.done(now):
            sequence.state = "waiting"
            self._waiting.append(sequence)

    # Scheduling

    def _schedule(self, step: Step) -> tuple[list[_Sequence], list[tuple[_Sequence, int]]]:
        """Who decodes in this step, and who computes how many prompt tokens."""
        running, engine = self._running, self.engine
        per_decode = 1 + engine.draft_tokens
        budget = engine.token_budget
        decoding: list[_Sequence] = []
        chunks: list[tuple[_Sequence, int]] = []
        i = 0
        while i < len(running) and budget > 0:
            sequence = running[i]
            if sequence.computed < sequence.target:
                budget -= self._compute(sequence, budget, chunks)
            else:
                needed = min(sequence.length + per_decode, engine.max_model_len)
                if needed > sequence.capacity and not self._grow(sequence, needed, step):
                    break
                decoding.append(sequence)
                budget -= per_decode
            i += 1
        while (
            self._waiting and budget > 0 and not step.preempted
            and len(running) < engine.max_num_seqs
        ):  # fmt: skip
            sequence = self._waiting[0]
            if not self._admit(sequence, step):
                break
            self._waiting.popleft()
            running.append(sequence)
            budget -= self._compute(sequence, budget, chunks)
        return decoding, chunks

    def _compute(
        self, sequence: _Sequence, budget: int, chunks: list[tuple[_Sequence, int]]
    ) -> int:
        """Plan the next part of a prompt. Its full blocks are in the prefix cache from here on: a
        request admitted later in the same step finds them, as in vLLM."""
        chunk = min(budget, sequence.target - sequence.computed)
        chunks.append((sequence, chunk))
        if self.engine.prefix_cache:
            size = self.engine.block_size
            end = sequence.computed + chunk
            for key in sequence.hashes[sequence.computed // size : end // size]:
                if self.pool.publish(key):
                    sequence.shared.append(key)
                    sequence.private -= 1
        return chunk

    def _grow(self, sequence: _Sequence, needed: int, step: Step) -> bool:
        """Give a running sequence blocks for ``needed`` tokens, preempting the last admitted ones
        if need be; False when it had to go itself."""
        size = self.engine.block_size
        blocks = -(-(needed - sequence.capacity) // size)
        while not self.pool.take(blocks):
            victim = self._running.pop()
            self._preempt(victim, step)
            if victim is sequence:
                return False
        sequence.private += blocks
        sequence.capacity += blocks * size
        return True

    def _preempt(self, victim: _Sequence, step: Step) -> None:
        """Take a sequence's memory; it is computed anew, what it generated included."""
        self._release(victim)
        victim.target = victim.length
        victim.computed = victim.capacity = 0
        victim.state = "waiting"
        self._waiting.appendleft(victim)
        step.preempted.append(victim.id)
        self.stats.preemptions += 1

    def _admit(self, sequence: _Sequence, step: Step) -> bool:
        """Find memory for a whole prompt, what the cache holds of it counted once."""
        size, pool, stats = self.engine.block_size, self.pool, self.stats
        hashes = sequence.hashes[: (sequence.target - 1) // size]  # the last token gives logits
        hits = pool.match(hashes) if self.engine.prefix_cache else 0
        blocks = -(-(sequence.target + 1) // size)
        if not pool.admit(hashes[:hits], blocks - hits):
            return False
        sequence.shared = list(hashes[:hits])
        sequence.private = blocks - hits
        sequence.capacity = blocks * size
        sequence.computed = hits * size
        sequence.state = "running"
        step.admitted.append(Admission(sequence.id, hits * size, sequence.admitted))
        if not sequence.admitted:
            sequence.admitted = True
            stats.prompt_tokens += sequence.prompt
            stats.prefix_queries += sequence.prompt
            stats.prefix_hits += hits * size
        return True

    def _release(self, sequence: _Sequence) -> None:
        self.pool.give(sequence.private)
        self.pool.release(sequence.shared)
        sequence.shared, sequence.private = [], 0

    # Running

    def _host_s(self, at_once: int, tokens: int) -> float:
        return self.engine.host_s(at_once, tokens) / self._speed("host", at_once, tokens)

    def _decode_s(self, sequences: int, tokens: float, context: int) -> float:
        return self.engine.decode_s(sequences, tokens) / self._speed("decode", sequences, context)

    def _speed(self, work: Work, streams: int, context: int) -> float:
        return self._start.speed(work, streams, context, self._now)

    def _run(
        self, step: Step, decoding: list[_Sequence], chunks: list[tuple[_Sequence, int]]
    ) -> list[tuple[_Sequence, int]]:
        """Set the step's duration, advance prompts, and say how many tokens each one yields."""
        engine = self.engine
        tokens: list[tuple[_Sequence, int]] = []
        held = 0
        time = prefill = 0.0
        if decoding:
            for sequence in decoding:
                held += sequence.length
            mean = held / len(decoding)
            time = self._decode_s(len(decoding), mean, decoding[0].prompt)
            tokens = self._draw(decoding, mean)
        for sequence, chunk in chunks:
            end = sequence.computed + chunk
            speed = self._speed("prefill", 1, sequence.prompt)
            prefill += engine.prefill_s(sequence.computed, end) / speed
            held += end
            sequence.computed = end
            if end == sequence.target:
                tokens.append((sequence, 1))
        if chunks:
            # a prompt's short tail costs no less than its place in the batch
            batch = len(decoding) + len(chunks)
            shortest = self._decode_s(batch, held / batch, chunks[0][0].prompt)
            time = max(time + prefill, shortest)
        step.duration_s = time
        return tokens

    def _draw(self, decoding: list[_Sequence], held: float) -> list[tuple[_Sequence, int]]:
        """How many tokens each decoding sequence yields."""
        drafts, stats = self.engine.draft_tokens, self.stats
        if not drafts:
            return [(sequence, 1) for sequence in decoding]
        means = self.engine.mean_tokens(len(decoding), held)
        tokens: list[tuple[_Sequence, int]] = []
        accepted = 0
        if self._average:
            for sequence in decoding:
                owed = sequence.owed + means[sequence.hard]
                number = int(owed)
                sequence.owed = owed - number
                tokens.append((sequence, number))
                accepted += number - 1
        else:
            bounds, draw = [self._bounds(mean) for mean in means], self._random.random
            for sequence in decoding:
                bound = bounds[sequence.hard]
                if sequence.text != 1.0:
                    bound = self._bounds(1 + (means[sequence.hard] - 1) * sequence.text)
                number = 1 + bisect_right(bound, draw())
                tokens.append((sequence, number))
                accepted += number - 1
        stats.drafts += len(decoding)
        stats.draft_tokens += len(decoding) * drafts
        stats.accepted_tokens += accepted
        return tokens

    def _bounds(self, mean: float) -> list[float]:
        """Cumulative chances of 0, 1, … accepted tokens, for a mean number of tokens a step."""
        key = round(mean * 500)
        bounds = self._acceptance.get(key)
        if bounds is None:
            drafts = self.engine.draft_tokens
            p = acceptance_for(key / 500, drafts)
            bounds = list(accumulate(p**j * (1 - p) for j in range(drafts)))
            self._acceptance[key] = bounds
        return bounds

    def _settle(self, step: Step, tokens: list[tuple[_Sequence, int]]) -> None:
        """Book the tokens, end what is complete."""
        out = step.tokens
        made = 0
        ended = False
        for sequence, new in tokens:
            before = sequence.generated
            total = before + new
            finish = None
            if total >= sequence.limit:
                total = sequence.limit
                finish = sequence.finish
                sequence.state = "gone"
                ended = True
            sequence.generated = total
            sequence.length = sequence.prompt + total
            made += total - before
            out.append(Tokens(sequence.id, total - before, total, before == 0, finish))
        self.stats.generation_tokens += made
        if ended:
            for sequence in self._running:
                if sequence.state == "gone":
                    self._release(sequence)
                    del self._sequences[sequence.id]
                    self.stats.requests += 1
            self._running = [s for s in self._running if s.state != "gone"]

    def _gauges(self) -> None:
        self.stats.running = len(self._running)
        self.stats.waiting = len(self._waiting)
        self.stats.kv_use = self.pool.used / self.pool.usable
