"""A simulated server from a profile and parameters: put together, and served by uvicorn."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import uvicorn

from pytest_llmperf.baseline.file import load
from pytest_llmperf.baseline.profiles import available_profiles, find_profile
from pytest_llmperf.baseline.schema import Baseline
from pytest_llmperf.model.errors import ConfigError
from pytest_llmperf.sim.app import App
from pytest_llmperf.sim.calibrate import calibrate
from pytest_llmperf.sim.faults import Faults
from pytest_llmperf.sim.pacer import Pacer, clock
from pytest_llmperf.sim.parameters import DEFAULT_PROFILE, SimParameters
from pytest_llmperf.sim.personalities.llamacpp import LlamaCpp
from pytest_llmperf.sim.personalities.vllm import Vllm
from pytest_llmperf.sim.profile import EngineModel, ProfileTables
from pytest_llmperf.sim.scheduler import Scheduler
from pytest_llmperf.sim.truth import TruthFile
from pytest_llmperf.sim.wire import Personality, Served

LLAMACPP_SLOTS = 4
_GRACE_S = 2.0
_SHORTEST = 64
"""Tokens; a chat's template takes 43."""


def load_profile(parameters: SimParameters, baselines_dir: Path) -> Baseline:
    """The profile that a spec names.

    Raises:
        ConfigError: when there is none of that name, or its file is bad.
    """
    name = parameters.profile or DEFAULT_PROFILE
    try:
        path = find_profile(name, baselines_dir)
    except ConfigError:
        known = ", ".join(available_profiles(baselines_dir))
        raise ConfigError(
            f"the simulator has no profile {name!r} to play; name one: sim:PROFILE, of {known}"
        ) from None
    return load(path)


def build_engine(parameters: SimParameters, baseline: Baseline) -> EngineModel:
    """The profile's engine as the parameters change it.

    Raises:
        ConfigError: when the profile is too thin, or the KV budget too small for its length.
    """
    engine = calibrate(ProfileTables.from_baseline(baseline))
    kv_tokens, slots = parameters.kv_tokens, parameters.slots
    max_model_len = parameters.max_model_len
    if parameters.engine == "llamacpp":
        # n_ctx is all there is; a block more for each slot, since slots are no pages there
        slots = slots or LLAMACPP_SLOTS
        n_ctx = kv_tokens or engine.kv_tokens
        each = n_ctx if parameters.unified else n_ctx // slots
        max_model_len = min(max_model_len or each, each)
        kv_tokens = n_ctx + (slots + 1) * engine.block_size
    variation = replace(parameters, kv_tokens=kv_tokens, slots=slots, max_model_len=max_model_len)
    try:
        engine = engine.vary(variation)
    except ValueError as problem:
        raise ConfigError(str(problem)) from None
    if engine.max_model_len < _SHORTEST:
        raise ConfigError(
            f"{engine.kv_tokens} KV tokens hold requests of {engine.max_model_len} tokens at most; "
            f"give the simulator kv_tokens and max_model_len for at least {_SHORTEST}"
        )
    return engine


def describe(parameters: SimParameters, baseline: Baseline, engine: EngineModel) -> Served:
    """How the server shows itself."""
    match = baseline.match
    run = next(reversed(baseline.runs.values()), None)
    root = match.model or match.served_model or baseline.hardware.profile
    return Served(
        profile=baseline.hardware.profile,
        model=parameters.model or match.served_model or root,
        root=root,
        version=(run and run.engine_version) or "0.0.0",
        max_model_len=engine.max_model_len,
        kv_tokens=engine.kv_tokens,
        block_size=engine.block_size,
        slots=engine.max_num_seqs,
        created=int(time.time()),
    )


class SimServer:
    """A simulated server in this process; `run` serves until `stop`."""

    def __init__(self, parameters: SimParameters, baselines_dir: Path) -> None:
        baseline = load_profile(parameters, baselines_dir)
        self._parameters = parameters
        self._engine = build_engine(parameters, baseline)
        self.served = describe(parameters, baseline, self._engine)
        self._server: uvicorn.Server | None = None

    def run(self, listener: socket.socket, ready: Callable[[], None]) -> None:
        """Serve on a bound socket; ``ready`` is called once requests are answered."""
        try:
            import uvloop
        except ImportError:
            loop = asyncio.new_event_loop()
        else:
            loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._serve(listener, ready))
        finally:
            loop.close()

    def stop(self) -> None:
        """End; safe from another thread."""
        if self._server is not None:
            self._server.should_exit = True

    async def _serve(self, listener: socket.socket, ready: Callable[[], None]) -> None:
        parameters = self._parameters
        is_vllm = parameters.engine == "vllm"
        personality: Personality = Vllm(self.served) if is_vllm else LlamaCpp(self.served)
        faults = Faults(parameters.fault)
        truth = TruthFile(Path(parameters.truth)) if parameters.truth else None
        pacer = Pacer(
            Scheduler(self._engine, parameters.key, began=clock()),
            faults,
            personality.error_event,
            slots_die=not is_vllm,
            truth=truth,
        )
        app = App(parameters, self.served, personality, pacer, faults, truth)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_level="critical",
                access_log=False,
                server_header=False,
                date_header=is_vllm,
                timeout_graceful_shutdown=1,
            )
        )
        _calm_interpreter()
        stepping = asyncio.ensure_future(pacer.run())
        stepping.add_done_callback(_report_failure)
        # the socket listens already: what comes before uvicorn is up waits in its backlog
        listener.listen(2048)
        ready()
        await self._server.serve(sockets=[listener])
        stepping.cancel()
        if truth is not None:
            truth.close()


def _calm_interpreter() -> None:
    """Keep pauses out of the pacing: what exists now is never collected, collections are rare, and
    the tokenizer's thread hands the interpreter over quickly."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    sys.setswitchinterval(0.0005)


def _report_failure(stepping: asyncio.Future[None]) -> None:
    if not stepping.cancelled() and (problem := stepping.exception()) is not None:
        # without its engine the server would hang; the traceback is what the user can report
        sys.excepthook(type(problem), problem, problem.__traceback__)
        os._exit(1)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        ConfigError: when the address cannot be had.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as problem:
        listener.close()
        why = getattr(problem, "strerror", None) or problem
        raise ConfigError(f"cannot listen on {host} port {port}: {why}") from None
    return listener


def end_with_parent(stop: Callable[[], None]) -> None:
    """Stop when the process that started this one closes our stdin, or is gone (a child of its own
    may hold that pipe); at once if a hung event loop does not stop in time."""
    parent = os.getppid()

    def wait_for_end_of_stdin() -> None:
        while os.read(0, 4096):
            pass

    def wait_for_new_parent() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)

    def end_after(wait: Callable[[], None]) -> None:
        wait()
        stop()
        time.sleep(_GRACE_S)
        os._exit(1)

    for wait in (wait_for_end_of_stdin, wait_for_new_parent):
        threading.Thread(target=end_after, args=(wait,), daemon=True).start()
