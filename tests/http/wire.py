"""A plain connection to a server, for bytes that no client sends and moments at which none leaves."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import httpx


class Plain(httpx.Client):
    """A client that doesn't await: the server lives in a thread of its own."""


class Wire:
    """A connection on which a test says whatever bytes it likes."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.got = b""

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def until(self, end: bytes) -> bytes:
        """Reads up to and with these bytes."""
        while end not in self.got:
            part = self.sock.recv(65536)
            if not part:
                raise EOFError(self.got)
            self.got += part
        at = self.got.index(end) + len(end)
        found, self.got = self.got[:at], self.got[at:]
        return found

    def reply(self, *, head: bool = False) -> tuple[int, dict[str, str], bytes]:
        """One whole reply: status, headers, body."""
        start, *lines = self.until(b"\r\n\r\n").decode("latin-1").strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = 0 if head else int(headers.get("content-length", "0"))
        while len(self.got) < size:
            part = self.sock.recv(65536)
            if not part:
                raise EOFError(self.got)
            self.got += part
        body, self.got = self.got[:size], self.got[size:]
        return int(start.split()[1]), headers, body

    def vanish(self) -> None:
        """Gone at once, whatever was under way (a reset, as when a process is killed with unread bytes)."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def ended(self) -> bool:
        """The server closes without another byte."""
        return not self.got and self.sock.recv(1) == b""


@contextmanager
def wire(url: str, *, receive_buffer: int = 0) -> Iterator[Wire]:
    """A connection to the server; with a small buffer a big reply gets stuck."""
    at = httpx.URL(url)
    with socket.socket() as sock:
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(15)
        sock.connect((at.host, at.port))
        yield Wire(sock)


def post(path: str, body: bytes, *more: str) -> bytes:
    """A POST as bytes."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *more, "", ""]
    return "\r\n".join(lines).encode() + body


def get(path: str, *more: str) -> bytes:
    """A GET as bytes."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *more, "", ""]).encode()
