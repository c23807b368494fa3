"""A link that reads its socket itself, so as to get the kernel's stamps."""

from __future__ import annotations

import array
import asyncio
import fcntl
import socket
import ssl
import termios
import time

from pytest_llmperf.client.intake import Intake
from pytest_llmperf.client.link import WRITE_SLICE, Receiver
from pytest_llmperf.client.stamps import ANCILLARY, ReceiveClock, ask_for_stamps
from pytest_llmperf.client.tls import Tls


class KernelLink:
    """``link.Link`` on a connected socket. Bytes are handed over as soon as they are read: their
    stamp does not depend on when that is."""

    def __init__(
        self,
        sock: socket.socket,
        tls: Tls | None,
        loop: asyncio.AbstractEventLoop,
        clock: ReceiveClock,
        intake: Intake,
        receiver: Receiver,
    ) -> None:
        self._socket = sock
        self._tls = tls
        self._loop = loop
        self._clock = clock
        self._intake = intake
        self._buffers = [intake.buffer]
        self._receiver = receiver
        self._unsent = memoryview(b"")
        self._waits_to_write = False
        self._closed = False
        loop.add_reader(sock, self._read)
        if tls is not None:
            # what came along with the end of the handshake
            self._hand_over(*tls.rest(), time.monotonic())

    def write(self, data: bytes) -> float:
        if self._tls is not None:
            data = self._tls.encrypt(data)
        self._unsent = memoryview(bytes(self._unsent) + data) if self._unsent else memoryview(data)
        at = time.monotonic()
        if not self._waits_to_write:
            self._send_some()
        return at

    def abort(self) -> None:
        self._close(None)

    def unread(self) -> int:
        found = array.array("i", [0])
        if not self._closed:
            fcntl.ioctl(self._socket, termios.FIONREAD, found)
        return found[0]

    def _read(self) -> None:
        try:
            size, ancillary, _, _ = self._socket.recvmsg_into(self._buffers, ANCILLARY)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close(error)
            return
        now = time.monotonic()
        if not size:
            self._end()
            return
        at = self._clock.stamp(ancillary, now)
        if at is None:
            self._intake.unstamped += 1
            at = now
        self._intake.note(size, at, now)
        data = self._buffers[0][:size]
        if self._tls is None:
            self._receiver.digest(data, at)
        else:
            self._decrypt(self._tls, data, at)

    def _decrypt(self, tls: Tls, data: memoryview, at: float) -> None:
        try:
            plain, ended = tls.decrypt(data)
        except ssl.SSLError as error:
            self._close(error)
            return
        if tls.has_to_answer:
            self.write(b"")
        self._hand_over(plain, ended, at)

    def _hand_over(self, plain: bytes, ended: bool, at: float) -> None:
        if plain:
            self._receiver.digest(plain, at)
        if ended and not self._closed:
            self._end()

    def _send_some(self) -> None:
        try:
            sent = self._socket.send(self._unsent[:WRITE_SLICE])
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            # told in a turn of its own: who writes does not expect the end of the link meanwhile
            self._loop.call_soon(self._close, error)
            return
        self._unsent = self._unsent[sent:]
        if bool(self._unsent) != self._waits_to_write:
            self._waits_to_write = bool(self._unsent)
            if self._waits_to_write:
                self._loop.add_writer(self._socket, self._send_some)
            else:
                self._loop.remove_writer(self._socket)

    def _end(self) -> None:
        self._receiver.eof()
        self._close(None)

    def _close(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket)
        if self._waits_to_write:
            self._loop.remove_writer(self._socket)
        self._socket.close()
        self._loop.call_soon(self._receiver.lost, error)


async def connect(
    loop: asyncio.AbstractEventLoop, host: str, port: int, context: ssl.SSLContext | None
) -> tuple[socket.socket, Tls | None]:
    """A connected socket that gives stamps, and its TLS, hands shaken.

    Raises:
        OSError: no address of the host can be connected to; of several, the last one's error.
    """
    failure: OSError | None = None
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ask_for_stamps(sock)
            await loop.sock_connect(sock, address)
            tls = Tls(context, host) if context else None
            if tls is not None:
                await tls.shake_hands(loop, sock)
        except ssl.SSLError:
            sock.close()
            raise
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock, tls
    raise failure or OSError(f"no address of {host}")
