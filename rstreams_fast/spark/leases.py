"""Permits of a whole job: a small server in the process of the driver, or of the client of Spark
Connect, and its clock for the rate.

A worker has a connection for each stage at work, proves that it knows the token, names the limit,
and then asks for permits (``a``), gives them back (``r``) or holds all of them back (``h`` and the
seconds). A stage that ends before its threads keeps what those need (``k`` and how many). It is
told ``g`` for each, and says when its call has left (``l``): with a rate only so many may be under
way, or those that are late would start beside those that are in time. A worker that has not said so
for ``SILENT_SECONDS`` holds nobody up, and is granted nothing until it has. What a connection has
comes back when it ends, which the kernel sees to when a process is killed; where a host is gone,
keep-alive ends it.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
import struct
import sys
import threading
from collections import deque
from typing import Any, Final, NamedTuple

__all__ = [
    "ASK",
    "CHALLENGE_BYTES",
    "COUNT",
    "DEATH_SECONDS",
    "GIVE_BACK",
    "GRANT",
    "HOLD",
    "KEEP",
    "LATE_SECONDS",
    "LEFT",
    "SECONDS",
    "UNDER_WAY",
    "Address",
    "Pace",
    "answer_to",
    "keep_alive",
    "serve",
]

ASK: Final = b"a"
GIVE_BACK: Final = b"r"
HOLD: Final = b"h"
KEEP: Final = b"k"
GRANT: Final = b"g"
LEFT: Final = b"l"
SECONDS: Final = struct.Struct("!d")
COUNT: Final = struct.Struct("!I")
CHALLENGE_BYTES: Final = 32
DEATH_SECONDS: Final = 0.05
"""How long the permits of a worker that was killed wait for the kernel to end its calls, too."""
LATE_SECONDS: Final = 0.002
"""How much later than its time a call may start and not change the times of those behind it."""
UNDER_WAY: Final = 0.01
"""The share of a second's permits by which more calls may start, as bursts or as grants that come
late."""
SILENT_SECONDS: Final = 1.0
"""How long the grants under way to one worker may hold up the others."""
_ANSWER: Final = struct.Struct("!32sI")  # the digest, and which limit


class Address(NamedTuple):
    """Where the permits of a limit are served, and what one must know to be given any."""

    host: str
    port: int
    token: bytes
    number: int


class Pace:
    """So many a second, evenly spaced, of which ``burst`` may come at once after a pause."""

    def __init__(self, rate: float | None, burst: int) -> None:
        self._interval = 0.0 if rate is None else 1 / rate
        self._ahead = (burst - 1) * self._interval
        self.late = max(LATE_SECONDS, self._interval / 10)
        """How much later than its time a call may start and need no other."""
        self.bounds = rate is not None

    def reserve(self, now: float, state: tuple[float, float]) -> tuple[float, float]:
        """Return when the next one may start, and the new time up to which all is reserved.

        ``state``: that time, and the one before which nothing may start. Times are seconds.
        """
        reserved, not_before = state
        start = max(now, reserved - self._ahead, not_before)
        return start, max(reserved, start) + self._interval


def answer_to(challenge: bytes, address: Address) -> bytes:
    """Return what a client answers."""
    return _ANSWER.pack(hmac.digest(address.token, challenge, "sha256"), address.number)


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Let the connection end within seconds where the other host is gone."""
    found: socket.socket = transport.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 2)):
        if hasattr(socket, option):
            found.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class _Permits:
    """Those of one limit. The server's loop alone uses it."""

    def __init__(self, concurrency: int | None, rate: float | None, burst: int) -> None:
        self.numbers = (concurrency, rate, burst)
        self._free = sys.maxsize if concurrency is None else concurrency
        self._pace = Pace(rate, burst)
        # Those that come late start beside the rate's and the burst's.
        late = sys.maxsize if rate is None else max(burst, int(rate * UNDER_WAY) - burst)
        self._most_under_way = late
        self._under_way = 0  # to those that are not silent
        self._told = set[_Lease]()  # and have not said that all calls have left
        self._look: asyncio.TimerHandle | None = None
        self._reserved = self._not_before = 0.0
        self._waiting: deque[_Lease] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, lease: _Lease) -> None:
        self._waiting.append(lease)
        self._grant()

    def give_back(self, count: int) -> None:
        self._free += count
        self._grant()

    def hold(self, seconds: float) -> None:
        now = asyncio.get_running_loop().time()
        self._not_before = max(self._not_before, now + seconds)

    def have_left(self, lease: _Lease, count: int) -> None:
        """Count no longer calls that have left a worker, or are lost with it."""
        lease.under_way -= count
        lease.heard_at = asyncio.get_running_loop().time()
        if not lease.silent:
            self._under_way -= count
        if not lease.under_way:
            lease.silent = False
            self._told.discard(lease)
        self._grant()

    def _look_for_silent(self) -> None:
        self._look = None
        before = asyncio.get_running_loop().time() - SILENT_SECONDS
        for lease in self._told:
            if not lease.silent and lease.heard_at <= before:
                lease.silent = True
                self._under_way -= lease.under_way
        self._grant()

    def forget(self, lease: _Lease) -> None:
        self._waiting = deque(other for other in self._waiting if other is not lease)

    def _grant(self, due: float | None = None) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        time = now if due is None else max(due, now - LATE_SECONDS)
        while self._free and self._timer is None:
            lease = next((one for one in self._waiting if not one.silent), None)
            if lease is None:
                return
            if self._under_way >= self._most_under_way:
                self._look = self._look or loop.call_later(SILENT_SECONDS, self._look_for_silent)
                return
            start, reserved = self._pace.reserve(time, (self._reserved, self._not_before))
            if start > now:
                self._timer = loop.call_at(start, self._due, start)
                return
            self._reserved = reserved
            self._free -= 1
            self._waiting.remove(lease)  # its first
            if self._pace.bounds:
                self._note(lease, now)
            lease.grant()

    def _note(self, lease: _Lease, now: float) -> None:
        """Count what is granted until its call has left."""
        if not lease.under_way:
            lease.heard_at = now
        self._told.add(lease)
        lease.under_way += 1
        self._under_way += 1

    def _due(self, time: float) -> None:
        self._timer = None
        self._grant(time)


class _Lease(asyncio.Protocol):
    """A connection, and how many permits it has."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._challenge = secrets.token_bytes(CHALLENGE_BYTES)
        self._received = b""
        self._permits: _Permits | None = None
        self._has = 0
        self.under_way = 0  # granted with a rate, and the call has not left
        self.heard_at = 0.0
        self.silent = False  # what is under way holds nobody up

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)  # noqa: S101 - for mypy
        self._transport = transport
        keep_alive(transport)
        transport.write(self._challenge)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._permits is None:
            if len(self._received) < _ANSWER.size:
                return
            digest, number = _ANSWER.unpack_from(self._received)
            right = hmac.digest(self._server.token, self._challenge, "sha256")
            if not hmac.compare_digest(digest, right) or number >= len(self._server.limits):
                self._transport.abort()
                return
            self._permits = self._server.limits[number]
            self._received = self._received[_ANSWER.size :]
        at, received = 0, self._received
        while at < len(received):
            message = received[at : at + 1]
            if message == HOLD:
                if len(received) < at + 1 + SECONDS.size:
                    break
                self._permits.hold(*SECONDS.unpack_from(received, at + 1))
                at += SECONDS.size
            elif message == KEEP:
                if len(received) < at + 1 + COUNT.size:
                    break
                self._keep(*COUNT.unpack_from(received, at + 1))
                at += COUNT.size
            elif message == ASK:
                self._permits.ask(self)
            elif message == LEFT and self.under_way:
                self._permits.have_left(self, 1)
            elif message == GIVE_BACK and self._has:
                self._has -= 1
                self._permits.give_back(1)
            at += 1
        self._received = received[at:]

    def _keep(self, count: int) -> None:
        """Have that many permits at most, and ask for none: whoever asked is gone."""
        assert self._permits is not None  # noqa: S101 - for mypy
        self._permits.forget(self)
        self._permits.have_left(self, self.under_way)
        self._permits.give_back(max(0, self._has - count))
        self._has = min(self._has, count)

    def grant(self) -> None:
        self._has += 1
        self._transport.write(GRANT)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self._permits is not None:
            self._permits.forget(self)
            self._permits.have_left(self, self.under_way)
            loop = asyncio.get_running_loop()
            loop.call_later(DEATH_SECONDS, self._permits.give_back, self._has)
            self._has = 0


class _Server:
    """Serves the limits of this process, on a thread of its own that ends with the process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.token = secrets.token_bytes(32)
        self.limits: list[_Permits] = []
        self.names: dict[str, int] = {}
        here, self.host = _own_addresses()
        try:
            listening = socket.create_server((here, 0), backlog=1024)
        except OSError as refused:
            raise RuntimeError(
                f"Limit(scope='job') cannot be served at {here}: {refused.strerror}; name an "
                "address of this machine by spark.driver.bindAddress, or take scope='executor'"
            ) from refused
        self.port = listening.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="rstreams-leases", daemon=True).start()
        serving = self._loop.create_server(lambda: _Lease(self), sock=listening)
        asyncio.run_coroutine_threadsafe(serving, self._loop).result()


_lock = threading.Lock()
_server: _Server | None = None


def serve(name: str, concurrency: int | None, rate: float | None, burst: int) -> Address:
    """Return where the permits of the limit are served: here, from now on. Any thread may call."""
    global _server  # noqa: PLW0603
    with _lock:
        if _server is None or _server.pid != os.getpid():
            _server = _Server()
        server = _server
        permits = _Permits(concurrency, rate, burst)
        number = server.names.setdefault(name, len(server.limits))
        if number == len(server.limits):
            server.limits.append(permits)
        elif server.limits[number].numbers != permits.numbers:
            raise ValueError(
                f"there is a limit {name!r} already, with other numbers (concurrency, rate, "
                f"burst): {server.limits[number].numbers}, not {permits.numbers}"
            )
        return Address(server.host, server.port, server.token, number)


def _own_addresses() -> tuple[str, str]:
    """Return where to listen, and the address that executors know this process by; loopback
    without a session.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        session: Any = SparkSession.active()
    except PySparkException:
        return "127.0.0.1", "127.0.0.1"
    if "connect" not in type(session).__module__:
        host = str(session.conf.get("spark.driver.host", "127.0.0.1"))
        return str(session.conf.get("spark.driver.bindAddress", host)), host
    # There the driver is elsewhere. What leads to its server may lead back from its executors.
    server = session.client.host
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((server, 9))  # sends nothing
            host = str(way.getsockname()[0])
            return host, host
    except OSError as unknown:
        raise RuntimeError(
            f"Limit(scope='job'): {server}, where Spark Connect is, has no IPv4 address by which "
            "executors could come back to this process; scope='executor' needs none"
        ) from unknown
