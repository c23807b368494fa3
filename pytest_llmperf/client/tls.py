"""TLS between a socket that is read directly and the bytes that matter."""

from __future__ import annotations

import asyncio
import socket
import ssl

_PLAIN_AT_ONCE = 2**18
_RECEIVE = 2**16


class Tls:
    """One connection's TLS: ciphertext in, plain text out, and the other way round."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    async def shake_hands(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        """
        Raises:
            ssl.SSLError: the two do not agree, or the certificate is not trusted.
            ConnectionResetError: the server closed the connection.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await loop.sock_sendall(sock, self._outgoing.read())
                data = await loop.sock_recv(sock, _RECEIVE)
                if not data:
                    raise ConnectionResetError("closed in the TLS handshake") from None
                self._incoming.write(data)
            except ssl.SSLError:
                await loop.sock_sendall(sock, self._outgoing.read())  # the alert says why
                raise
            else:
                await loop.sock_sendall(sock, self._outgoing.read())
                return

    def decrypt(self, data: memoryview) -> tuple[bytes, bool]:
        """The plain text of what arrived, and whether the server said that it is the last.

        Raises:
            ssl.SSLError: it is not what this connection has agreed on.
        """
        self._incoming.write(data)
        return self.rest()

    def rest(self) -> tuple[bytes, bool]:
        """Plain text that needs nothing more to arrive."""
        plain = bytearray()
        while True:
            try:
                part = self._tls.read(_PLAIN_AT_ONCE)
            except ssl.SSLWantReadError:
                return bytes(plain), False
            except ssl.SSLZeroReturnError:
                return bytes(plain), True
            if not part:
                return bytes(plain), True
            plain += part

    def encrypt(self, data: bytes) -> bytes:
        """What has to be sent for this, and whatever else TLS has to say."""
        if data:
            self._tls.write(data)
        return self._outgoing.read()

    @property
    def has_to_answer(self) -> bool:
        """Whether TLS has something to say by itself, such as a new key."""
        return self._outgoing.pending > 0
