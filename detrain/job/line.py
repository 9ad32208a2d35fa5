"""The line between rank 0 and the others: TCP, beside the script's own communication, so that no collective of its is added or moved.

Each process has one thread that reads. `threading` would count it, and name the script's next thread by another number.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import Protocol

from detrain.errors import UsageError
from detrain.job.messages import Hello, Message, Welcome
from detrain.job.place import NUM_PORTS, Place

#: A host that has lost its power says nothing: the system asks it after so many seconds of silence, as often, and gives up after `_COUNT`.
_SILENCE_S, _COUNT = 5, 3
#: How long a process may take to read what was sent to it.
_SENDING_S = 30.0
#: How long a rank waits at one of rank 0's ports: it takes one after the other.
_WELCOME_S = 10.0
#: Connections that may wait to be taken.
_MOST_WAITING = 128
#: How often the reading thread looks around where nothing comes.
TURN_S = 0.5
#: No message is longer. Bytes.
_LONGEST = 16 * 1024 * 1024


class Listener(Protocol):
    """Hears what comes over the line, in the thread that reads."""

    def on_message(self, rank: int, message: Message) -> None:
        """A message of this rank's has come."""

    def on_gone(self, rank: int) -> None:
        """The line to this rank has ended, whether the rank had or not."""

    def on_turn(self) -> None:
        """About twice a second."""


class _Peer:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(_SENDING_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_KEEPIDLE, _SILENCE_S),
            (socket.TCP_KEEPINTVL, _SILENCE_S),
            (socket.TCP_KEEPCNT, _COUNT),
            (socket.TCP_USER_TIMEOUT, _SILENCE_S * _COUNT * 1000),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        self.connection = connection
        self._sending = _thread.allocate_lock()
        self._unread = b""

    def send(self, message: Message) -> None:
        """Raises OSError."""
        with self._sending:
            self.connection.sendall(message.encode())

    def read(self) -> list[Message] | None:
        """What has come; None if nothing more will."""
        try:
            piece = self.connection.recv(1 << 16)
        except TimeoutError:
            return []
        except OSError:
            return None
        *lines, self._unread = (self._unread + piece).split(b"\n")
        if not piece or len(self._unread) > _LONGEST:
            return None
        try:
            return [Message.decode(line) for line in lines]
        except ValueError:
            return None

    def wait_for(self, until_s: float) -> Message | None:
        """The first message, if it comes in time; what comes behind it stays unread."""
        while (left_s := until_s - time.monotonic()) > 0:
            head, mark, rest = self._unread.partition(b"\n")
            if mark:
                self._unread = rest
                with contextlib.suppress(ValueError):
                    return Message.decode(head)
                return None
            self.connection.settimeout(left_s)
            try:
                piece = self.connection.recv(1 << 16)
            except OSError:
                return None
            finally:
                self.connection.settimeout(_SENDING_S)
            if not piece or len(self._unread) > _LONGEST:
                return None
            self._unread += piece
        return None

    def take_unread(self) -> list[Message]:
        """Messages that were received with an earlier one."""
        *lines, self._unread = self._unread.split(b"\n")
        return [Message.decode(line) for line in lines]


class Line:
    """One end, and the thread that reads at it."""

    def __init__(self, peers: dict[int, _Peer]) -> None:
        self._peers = peers
        self._is_closed = self._is_reading = False
        # A forked child is no rank. What it held open would keep the other end from hearing that this process has ended.
        os.register_at_fork(after_in_child=self._forget)

    def begin(self, listener: Listener) -> None:
        """Start the thread that reads."""
        self._is_reading = True
        _thread.start_new_thread(self._run, (listener,))

    def send(self, rank: int, message: Message) -> None:
        """Send to one rank; nothing happens where it is gone, of which the listener hears."""
        peer = self._peers.get(rank)
        if peer is None or self._is_closed:
            return
        try:
            peer.send(message)
        except OSError:
            with contextlib.suppress(OSError):
                peer.connection.shutdown(socket.SHUT_RDWR)  # the reading thread hears it

    def close(self) -> None:
        """End the line; the other ends hear that."""
        self._is_closed = True
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.connection.shutdown(socket.SHUT_RDWR)
            if not self._is_reading:  # else the thread that reads closes it
                peer.connection.close()

    def _forget(self) -> None:
        self._is_closed = True
        for peer in self._peers.values():
            peer.connection.close()

    def _run(self, listener: Listener) -> None:
        try:
            self._read_all(listener)
        finally:
            for peer in self._peers.values():
                peer.connection.close()

    def _read_all(self, listener: Listener) -> None:
        for rank, peer in self._peers.items():
            for message in peer.take_unread():
                listener.on_message(rank, message)
        with selectors.DefaultSelector() as selector:
            for rank, peer in self._peers.items():
                selector.register(peer.connection, selectors.EVENT_READ, rank)
            while not self._is_closed:
                for key, _ in selector.select(TURN_S):
                    self._read(key.data, selector, listener)
                if not self._is_closed:
                    listener.on_turn()

    def _read(self, rank: int, selector: selectors.BaseSelector, listener: Listener) -> None:
        peer = self._peers[rank]
        messages = peer.read()
        if messages is None:
            selector.unregister(peer.connection)
            if not self._is_closed:
                listener.on_gone(rank)
            return
        for message in messages:
            listener.on_message(rank, message)


class Hub(Line):
    """Rank 0's end: a connection to each of the others."""

    def __init__(self, place: Place) -> None:
        """Listens from now on. Raises `UsageError` where it cannot."""
        super().__init__({})
        self._place = place
        self._server = _listen(place)

    def gather(self, until_s: float, on_waiting: Callable[[list[int]], None]) -> dict[int, Hello]:
        """Wait for the first words of all other ranks, at most until then; returns those that came.

        `on_waiting` is called every few seconds with the ranks that are missing.
        """
        came: dict[int, Hello] = {}
        said_s = time.monotonic()
        while len(came) < self._place.size - 1 and time.monotonic() < until_s:
            self._server.settimeout(TURN_S)
            try:
                connection, _ = self._server.accept()
            except TimeoutError:
                if time.monotonic() - said_s > 10:
                    said_s = time.monotonic()
                    on_waiting([rank for rank in range(1, self._place.size) if rank not in came])
                continue
            self._meet(connection, came)
        self._server.close()
        return came

    def tell_all(self, message: Message) -> None:
        """Send to all other ranks."""
        for rank in self._peers:
            self.send(rank, message)

    def hear_all(self, until_s: float) -> dict[int, Message | None]:
        """One message of each, before the thread reads; None of a rank that has not sent one until then, or is gone."""
        return {rank: peer.wait_for(until_s) for rank, peer in self._peers.items()}

    def _meet(self, connection: socket.socket, came: dict[int, Hello]) -> None:
        peer = _Peer(connection)
        hello = peer.wait_for(time.monotonic() + 2)
        if not isinstance(hello, Hello) or hello.token != self._place.token or hello.rank in came or hello.rank < 1:
            connection.close()  # somebody else's, at a port that happened to be free
            return
        try:
            peer.send(Welcome())
        except OSError:
            connection.close()
            return
        # A rank that has given up in between has closed this connection, and comes again by another.
        if not isinstance(peer.wait_for(time.monotonic() + 2), Welcome):
            connection.close()
            return
        self._peers[hello.rank] = peer
        came[hello.rank] = hello


class Spoke(Line):
    """Another rank's end: a connection to rank 0."""

    def __init__(self, place: Place, hello: Hello, until_s: float) -> None:
        """Connects. Raises `UsageError` if rank 0 has not been met until then."""
        peer = _connect(place, hello, until_s)
        if peer is None:
            last = place.port + NUM_PORTS - 1
            raise UsageError(
                f"rank {place.rank} has not met rank 0 at {place.address}, ports {place.port} to {last}: it has not come, or the ports are "
                "closed between the hosts (DETRAIN_PORT names the first of others)"
            )
        super().__init__({0: peer})
        self._first = peer

    def hear(self, until_s: float) -> Message | None:
        """One message of rank 0's, before the thread reads; None if none comes until then."""
        return self._first.wait_for(until_s)


def _listen(place: Place) -> socket.socket:
    is_loopback = place.address in ("localhost", "::1") or place.address.startswith("127.")
    failed: OSError | None = None
    for port in range(place.port, place.port + NUM_PORTS):
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("127.0.0.1" if is_loopback else "", port))
            server.listen(max(place.size, _MOST_WAITING))
        except OSError as error:
            failed = error
            server.close()
            continue
        return server
    last = place.port + NUM_PORTS - 1
    raise UsageError(
        f"rank 0 can listen at none of the ports {place.port} to {last}: {failed}; DETRAIN_PORT names the first of others"
    )


def _connect(place: Place, hello: Hello, until_s: float) -> _Peer | None:
    while time.monotonic() < until_s:
        for port in range(place.port, place.port + NUM_PORTS):
            try:
                connection = socket.create_connection((place.address, port), timeout=2)
            except OSError:
                continue
            peer = _Peer(connection)
            with contextlib.suppress(OSError):
                peer.send(hello)
                if isinstance(peer.wait_for(time.monotonic() + _WELCOME_S), Welcome):
                    peer.send(Welcome())
                    return peer
            connection.close()
        time.sleep(0.05)
    return None
