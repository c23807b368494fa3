"""SIGTERM ends a run as Ctrl-C does: what was measured is reported, what was started is stopped."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM)


def end_on_sigterm() -> Callable[[], None]:
    """From now on SIGTERM does what SIGINT does; returns how to undo that.

    Nothing is changed where somebody else handles SIGTERM, or off the main thread.
    """
    if not _is_ours() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return lambda: None
    signal.signal(signal.SIGTERM, _interrupt)
    return lambda: _restore(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Both signals are ignored: the run is over, and its last reports take a moment."""
    if not _is_ours():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            _restore(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    # whoever handles SIGINT now: asyncio's runner, uvloop, or Python. A shell's background job
    # ignores it, which must not make SIGTERM ignored too
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


def _restore(number: int, handler: signal._HANDLER) -> None:
    # None: it was not set from Python, and cannot be set back from here
    signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _is_ours() -> bool:
    return threading.current_thread() is threading.main_thread()
