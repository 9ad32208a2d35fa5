"""A proxy before a real server, which fails on purpose: at the request of a number, in a way that has a name."""

from __future__ import annotations

import http.client
import http.server
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

#: What goes wrong with one request. `lost`: it is done, and the answer does not arrive.
FAULTS = ("refused", "cut", "lost", "500", "500-done", "503", "full", "slow", "stale")
#: The process that asks is killed.
KILLS = ("killed-before", "killed-half", "killed-after")
_SLOW_S = 0.4
_STATUS = {
    "500": (500, "InternalError"), "500-done": (500, "InternalError"), "503": (503, "SlowDown"), "full": (507, "InsufficientStorage"),
}  # fmt: skip
#: Headers that are between two neighbours.
_HOPS = {"connection", "transfer-encoding", "keep-alive", "expect"}


@dataclass
class Answer:
    """What the server says to one request."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


@dataclass
class Plan:
    """From the request of a number on, as many fail as `span` says; or one of `every`, in all ways in turn. Requests count from 0."""

    kind: str = ""
    position: int = 0
    span: int = 1
    process: int = 0
    every: int = 0
    count: int = 0
    num_faults: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self) -> str:
        """How the next request fails; "" if it does not."""
        with self._lock:
            kind = self.kind if self.position <= self.count < self.position + self.span else ""
            if self.every and self.count % self.every == self.every - 1:
                kind = FAULTS[self.num_faults % len(FAULTS)]
            self.count += 1
            self.num_faults += bool(kind)
            return kind


class Proxy(http.server.ThreadingHTTPServer):
    """Hands requests on to a server on this machine."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        """`port`: of the server."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream, self.plan = port, Plan()
        #: What was said last to each question that changes nothing.
        self.said: dict[str, Answer] = {}

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, *_: object) -> None:
        """A client that is gone is what these tests are about."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        question = f"{self.command} {self.path}"
        plan = self.server.plan
        kind = plan.next()
        is_read = self.command in ("GET", "HEAD")
        if kind == "slow":
            time.sleep(_SLOW_S)
        elif kind == "refused":
            self._hang_up()
            return
        elif kind == "killed-before":
            self._kill(plan.process)
            return
        elif kind in ("cut", "killed-half") and body:
            self._send_half(body)
            self._kill(plan.process) if kind == "killed-half" else self._hang_up()
            return
        elif kind in _STATUS and kind != "500-done":
            self._answer(self._trouble(kind))
            return
        before = self.server.said.get(question)
        answer = before if kind == "stale" and before is not None and is_read else self._ask(body)
        if is_read and kind != "stale":
            self.server.said[question] = answer
        if kind == "lost":
            self._hang_up()
        elif kind in ("killed-half", "killed-after"):
            self._kill(plan.process)
        elif kind == "cut":
            self._answer(answer, is_half=True)
        else:
            self._answer(self._trouble(kind) if kind == "500-done" else answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = _handle  # noqa: N815 - the base class's names

    def _ask(self, body: bytes) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.upstream, timeout=30)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOPS}
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        got = connection.getresponse()
        answer = Answer(got.status, got.getheaders(), got.read())
        connection.close()
        return answer

    def _send_half(self, body: bytes) -> None:
        """The server gets a request that ends too early."""
        lines = [f"{self.command} {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in self.headers.items())]
        head = "\r\n".join(lines).encode()
        with socket.create_connection(("127.0.0.1", self.server.upstream), timeout=30) as there:
            there.sendall(head + b"\r\n\r\n" + body[: len(body) // 2])
            time.sleep(0.02)

    def _answer(self, answer: Answer, *, is_half: bool = False) -> None:
        self.send_response_only(answer.status)
        length = str(len(answer.body))
        for name, value in answer.headers:
            if name.lower() == "content-length":
                length = value  # of HEAD: what the body would have
            elif name.lower() not in _HOPS:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(answer.body[: len(answer.body) // 2] if is_half else answer.body)
        if is_half:
            self._hang_up()

    def _trouble(self, kind: str) -> Answer:
        status, code = _STATUS[kind]
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>on purpose</Message></Error>".encode()
        return Answer(status, [("Content-Type", "application/xml")], b"" if self.command == "HEAD" else body)

    def _hang_up(self) -> None:
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _kill(self, process: int) -> None:
        if process:
            os.kill(process, signal.SIGKILL)
        self._hang_up()

    def log_message(self, *_: object) -> None:
        """Nothing on standard error."""


@contextmanager
def before(port: int) -> Iterator[Proxy]:
    """A proxy before the server at a port."""
    proxy = Proxy(port)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
