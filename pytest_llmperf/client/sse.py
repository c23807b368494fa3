"""The event-stream grammar on bytes.

Source: WHATWG HTML, "Server-sent events", *Parsing an event stream*. Lines are split before they
are decoded, so a character or a line end may be cut by a read anywhere.
"""

from __future__ import annotations

from collections.abc import Callable

MAX_EVENT = 4 * 2**20
"""Bytes one line or one event may have; a 512K prompt echoed as token ids stays below."""
MAX_STRAY = 2048
"""Bytes kept of lines that belong to no event, e.g. of a plain JSON body."""
_LINE_COST = 64
"""Bytes of memory a line takes beyond its text, so that empty ones count too."""

BOM = b"\xef\xbb\xbf"


class EventTooLarge(Exception):
    """The server sent a line or an event above ``MAX_EVENT``."""


class EventParser:
    """Cuts a byte stream into events and calls ``on_event(type, data)`` for each, in order.

    An event without data is not dispatched; comments, ``id`` and ``retry`` are skipped. Lines that
    are no field of the grammar are collected in ``stray``: they are how a server that does not
    speak event streams says what is wrong.
    """

    __slots__ = ("_cr", "_data", "_line", "_on_event", "_size", "_start", "_type", "stray")

    def __init__(self, on_event: Callable[[bytes, bytes], None]) -> None:
        self._on_event = on_event
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._type = b""
        self._cr = False
        self._start = True
        self.stray = b""

    def feed(self, data: bytes) -> None:
        """Takes the next bytes.

        Raises:
            EventTooLarge: a line or an event is above the limit.
        """
        if (
            data[:6] == b"data: "
            and data.find(b"\n") == len(data) - 2
            and data[-2:] == b"\n\n"
            and len(data) < MAX_EVENT - _LINE_COST
            and not (self._line or self._data or self._type or self._cr)
            and b"\r" not in data
        ):
            # one whole event in one read: nearly every read of a paced stream
            self._start = False
            self._on_event(b"", data[6:-2])
            return
        self._feed_lines(data)

    def close(self) -> None:
        """End of the stream: an event that was not closed by a blank line is not dispatched."""
        if self._line:
            self._take_line(bytes(self._line))
            self._line.clear()

    def _feed_lines(self, data: bytes) -> None:
        if self._cr and data:
            self._cr = False
            if data[:1] == b"\n":
                data = data[1:]
        if b"\r" not in data:
            lines = data.split(b"\n")
        else:
            self._cr = data.endswith(b"\r")
            lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest = lines.pop()
        if lines and self._line:
            self._line += lines[0]
            lines[0] = bytes(self._line)
            self._line.clear()
        for line in lines:
            self._take_line(line)
        self._line += rest
        if len(self._line) + self._size > MAX_EVENT:
            raise EventTooLarge

    def _take_line(self, line: bytes) -> None:
        if self._start:
            self._start = False
            line = line.removeprefix(BOM)
        if not line:
            self._dispatch()
            return
        if self._size + len(line) > MAX_EVENT:
            raise EventTooLarge
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value) + _LINE_COST
            if self._size > MAX_EVENT:
                raise EventTooLarge
        elif name == b"event":
            self._type = value[:64]
        elif name == b"error":
            # not in the grammar: older llama.cpp servers name the field after what it is
            self._on_event(b"error", value)
        elif name not in (b"", b"id", b"retry") and len(self.stray) < MAX_STRAY:
            self.stray += line[: MAX_STRAY - len(self.stray)] + b"\n"

    def _dispatch(self) -> None:
        if self._data:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            kind = self._type
            self._data = []
            self._size = 0
            self._type = b""
            self._on_event(kind, data)
        else:
            self._type = b""
