"""A server in the driver's process that grants permits of limits to the workers of a job.

With Spark Connect, the server is in the client's process. The module ``messages`` describes the
messages, and what the token, a probe and a silent worker are. A granted call is *sent* when the
worker's request to the service begins. A stage is one function, in one Spark task or on one event
loop.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from rstreams_fast.calls.limits.channels import Channel, Channels, last_bytes
from rstreams_fast.calls.limits.messages import (
    ANSWER,
    ASK,
    CHALLENGE_BYTES,
    COUNT,
    DECLARE,
    DECLARED,
    GIVE_BACK,
    GRANT,
    HOLD,
    KEEP,
    NUMBERS,
    PACED,
    PROBE,
    REFUSED,
    RELAY,
    REMAINING,
    SECONDS,
    SENT,
    SIZES,
    SPEND,
    UNPACED,
    WELCOME,
    Address,
    keep_alive,
    listening_at,
)
from rstreams_fast.calls.limits.pace import LATE_SECONDS, Numbers, Pace

__all__ = ["DEATH_SECONDS", "UNDER_WAY", "is_served_here", "serve", "serve_at", "serve_with"]

DEATH_SECONDS: Final = 0.05
"""How long, in seconds, a killed worker's permits stay in use: by then its calls have ended."""
BREAK_SECONDS: Final = 1.0
"""How long, in seconds, a broken connection keeps its permits: the worker may connect again."""
RELAY_SECONDS: Final = 5.0
"""How long, in seconds, permits stay in use after the relay of their host has ended: the workers
may start a new relay."""
LOST_SECONDS: Final = 10.0
"""If a worker with permits leaves a probe unanswered for this many seconds while other workers
wait, the server disconnects the worker."""
LEASE_WATCH_SECONDS: Final = 1.0
"""Seconds between two checks for workers that do not answer."""
UNACKNOWLEDGED: Final = 1 / 8
"""The largest share of a limit's permits that a worker gets before it sends its next message."""
PROBE_SECONDS: Final = 0.005
"""How long, in seconds, the server waits for the next worker in the queue to answer a probe. After
that, the workers behind it get permits first."""
AUTHENTICATION_SECONDS: Final = 5.0
"""Within this many seconds a new connection must prove that it knows the token."""
MOST_UNAUTHENTICATED: Final = 1024
"""The most connections that have not proved yet that they know the token: one more closes the
oldest. A second bound is a quarter of the files that the process may open."""
BACKLOG: Final = 1 << 15
"""The most connections that wait to be accepted. The kernel may have a lower bound."""
ACCEPTED_AT_ONCE: Final = 16
"""The most connections that are accepted in one iteration of the event loop."""
UNDER_WAY: Final = 0.01
"""The calls that are granted but not sent yet are at most this share of a second's rate, or
``burst`` calls if that is more. If they all start late, at the same time, they exceed the rate."""
SILENT_SECONDS: Final = 1.0
"""A granted call that its worker does not report as sent delays other workers. After this many
seconds without a report, the calls of the worker delay no other workers any more."""


def _loopback() -> tuple[str, str]:
    return "127.0.0.1", "127.0.0.1"


_own_addresses = _loopback


def serve_at(addresses: Callable[[], tuple[str, str]]) -> None:
    """Set the function that returns two addresses: to listen at, and to give to the workers.

    Default: the loopback address for both, for processes of one machine.
    """
    global _own_addresses  # noqa: PLW0603
    _own_addresses = addresses


class _RequestGroup:
    """Consecutive requests of one worker, as one element of the queue of requests."""

    __slots__ = ("count", "lease")

    def __init__(self, lease: _Lease, count: int) -> None:
        self.lease = lease
        self.count = count


class _Permits:
    """The permits of one limit, in the server. Only the server's event loop uses the object.

    A lease is the connection of a worker, together with the permits that the worker holds.
    """

    def __init__(self) -> None:
        self.numbers = Numbers(0.0, None, None, 1)
        self._pace = Pace(self.numbers)
        self._clocks = self._pace.new
        self._total = self._free = self._most_unacknowledged = self._most_under_way = sys.maxsize
        self._under_way = 0
        """Number of granted calls not yet reported as sent, except the calls of silent workers."""
        self._leases_under_way = set[_Lease]()
        """The leases with granted calls that were not reported as sent yet."""
        self._silence_timer: asyncio.TimerHandle | None = None
        self._not_before = 0.0
        self._leases = set[_Lease]()
        self._queue: deque[_RequestGroup] = deque()
        self._probe_timer: asyncio.TimerHandle | None = None
        self._watch_timer: asyncio.TimerHandle | None = None
        self._start_timer: asyncio.TimerHandle | None = None

    def join(self, lease: _Lease, numbers: Numbers) -> None:
        """Add ``lease`` to the users. Its ``numbers`` apply, unless newer numbers are in use."""
        is_in_use = self._leases or self._free < self._total
        if not is_in_use or numbers.made > self.numbers.made:
            self._renumber(numbers)
        self._leases.add(lease)

    def _renumber(self, numbers: Numbers) -> None:
        before, self.numbers = self.numbers, numbers
        if before[1:] == numbers[1:]:
            return
        now = asyncio.get_running_loop().time()
        total = sys.maxsize if numbers.concurrency is None else numbers.concurrency
        self._free += total - self._total
        self._total = total
        self._most_unacknowledged = max(1, int(total * UNACKNOWLEDGED))
        self._pace = Pace(numbers)
        clocks = self._clocks + self._pace.new[len(self._clocks) :]
        self._clocks = self._pace.restart(now, clocks)
        # Bound the granted, unsent calls: many that start late, together, would exceed the rate.
        rate, burst = numbers.rate, numbers.burst
        late = sys.maxsize if rate is None else max(burst, int(rate * UNDER_WAY) - burst)
        self._most_under_way = late
        for lease in self._leases:
            lease.tell_pace(numbers)
        self._grant_anew()

    def ask(self, lease: _Lease, weights: tuple[float, ...]) -> None:
        lease.requests.append(weights)
        self._enqueue(lease, 1)
        self._grant()

    def spend(self, change: tuple[float, ...]) -> None:
        now = asyncio.get_running_loop().time()
        self._clocks = self._pace.spend(now, self._clocks, change)
        self._grant_anew()

    def adopt_remaining(self, left: tuple[float, ...], weights: tuple[float, ...]) -> None:
        now = asyncio.get_running_loop().time()
        self._clocks = self._pace.adopt_remaining(now, self._clocks, left, weights)
        self._grant_anew()

    def _grant_anew(self) -> None:
        if self._start_timer is not None:  # the timer's time was computed from the old clocks
            self._start_timer.cancel()
            self._start_timer = None
        self._grant()

    def _enqueue(self, lease: _Lease, count: int) -> None:
        if count and self._queue and self._queue[-1].lease is lease:
            self._queue[-1].count += count
        elif count:
            self._queue.append(_RequestGroup(lease, count))

    def _enqueue_deferred(self, lease: _Lease) -> None:
        deferred, lease.deferred = lease.deferred, 0
        self._enqueue(lease, deferred)

    def take(self, count: int) -> None:
        """Count ``count`` permits of running calls as used, even if this exceeds the limit."""
        self._free -= count

    def give_back(self, count: int) -> None:
        self._free += count
        self._grant()

    def hold(self, seconds: float) -> None:
        now = asyncio.get_running_loop().time()
        self._not_before = max(self._not_before, now + seconds)

    def note_message(self, lease: _Lease) -> None:
        """Note that the worker of ``lease`` has sent a message: it is alive, and reads messages."""
        lease.last_message_at = asyncio.get_running_loop().time()
        lease.probed_at = None
        enough, lease.unacknowledged = lease.unacknowledged >= self._most_unacknowledged, 0
        if enough:
            self._enqueue_deferred(lease)
            self._grant()

    def count_sent(self, lease: _Lease, count: int) -> None:
        """No longer count ``count`` calls as unsent: they were sent, or their worker is gone."""
        lease.under_way -= count
        lease.progress_at = asyncio.get_running_loop().time()
        if not lease.silent:
            self._under_way -= count
        if not lease.under_way:
            lease.silent = False
            self._leases_under_way.discard(lease)
            self._enqueue_deferred(lease)
        self._grant()

    def _mark_silent(self) -> None:
        self._silence_timer = None
        before = asyncio.get_running_loop().time() - SILENT_SECONDS
        for lease in self._leases_under_way:
            if not lease.silent and lease.progress_at <= before:
                lease.silent = True
                self._under_way -= lease.under_way
        self._grant()

    def forget(self, lease: _Lease) -> None:
        """Drop the requests of ``lease``; no longer count its granted calls as unsent."""
        lease.requests.clear()
        lease.deferred = 0
        self._queue = deque(group for group in self._queue if group.lease is not lease)
        self.count_sent(lease, lease.under_way)

    def leave(self, lease: _Lease) -> None:
        self._leases.discard(lease)
        self.forget(lease)

    def _grant(self, due: float | None = None) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        time = now if due is None else max(due, now - LATE_SECONDS)
        while self._free > 0 and self._start_timer is None and self._queue:
            group = self._queue[0]
            lease = group.lease
            if lease.silent or lease.unacknowledged >= self._most_unacknowledged:
                if not lease.silent and self._must_await_answer(lease, loop):
                    return
                # Put this worker's requests aside until the worker sends a message.
                lease.deferred += group.count
                self._queue.popleft()
                continue
            if self._under_way >= self._most_under_way:
                if self._silence_timer is None:
                    self._silence_timer = loop.call_later(SILENT_SECONDS, self._mark_silent)
                return
            weights = lease.requests[0]
            start, clocks = self._pace.reserve(time, self._clocks, self._not_before, weights)
            if start > now:
                self._start_timer = loop.call_at(start, self._grant_due, start)
                return
            self._clocks = clocks
            self._free -= 1
            lease.requests.popleft()
            group.count -= 1
            if not group.count:
                self._queue.popleft()
            if self.numbers.are_paced:
                self._count_under_way(lease, now)
            lease.grant()
        if self._free <= 0 and self._queue and self._watch_timer is None:
            self._watch_timer = loop.call_later(LEASE_WATCH_SECONDS, self._watch)

    def _must_await_answer(self, lease: _Lease, loop: asyncio.AbstractEventLoop) -> bool:
        """Probe the worker of ``lease``; return whether other workers must wait for its answer.

        They wait for ``PROBE_SECONDS`` at most. After that they get permits before this worker.
        """
        until = lease.probe(loop.time()) + PROBE_SECONDS
        if loop.time() >= until:
            return False
        if self._probe_timer is None:
            self._probe_timer = loop.call_at(until, self._grant_after_probe)
        return True

    def _grant_after_probe(self) -> None:
        self._probe_timer = None
        self._grant()

    def _watch(self) -> None:
        """Probe workers with permits; disconnect those without an answer for ``LOST_SECONDS``."""
        self._watch_timer = None
        now = asyncio.get_running_loop().time()
        for lease in list(self._leases):
            if lease.probed_at is not None and now >= lease.probed_at + LOST_SECONDS:
                lease.abort()
            elif lease.held and now >= lease.last_message_at + LEASE_WATCH_SECONDS:
                lease.probe(now)
        self._grant()

    def _count_under_way(self, lease: _Lease, now: float) -> None:
        """Count a granted call as unsent, until the worker reports that the call was sent."""
        if not lease.under_way:
            lease.progress_at = now
        self._leases_under_way.add(lease)
        lease.under_way += 1
        self._under_way += 1

    def _grant_due(self, time: float) -> None:
        self._start_timer = None
        self._grant(time)


Serve = Callable[[asyncio.Transport], asyncio.Protocol]
"""Takes the transport of a client that knows the token; returns the protocol for this client."""


class _Lease(asyncio.Protocol):
    """The server's protocol for a worker's connection, and the permits that the worker holds."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._challenge = secrets.token_bytes(CHALLENGE_BYTES)
        self._received = b""
        self._permits: _Permits | None = None
        self._identity = b""
        self._stage_ended = False  # if true, only threads of the ended stage still hold permits
        self._end_timer: asyncio.TimerHandle | None = None
        self._units = 0  # how many units (tokens, for example) the limit has
        self.held = 0
        self.requests: deque[tuple[float, ...]] = deque()
        """The cost of each call that waits for a grant, in each unit."""
        self.deferred = 0
        """Number of requests that are put aside until the worker sends a message."""
        self.unacknowledged = 0
        """Number of grants since the worker's latest message."""
        self.last_message_at = 0.0
        self.probed_at: float | None = None
        """When the unanswered probe was sent; ``None`` if the worker has answered all probes."""
        self.under_way = 0
        """Number of granted calls that are not reported as sent; 0 without a rate or units."""
        self.progress_at = 0.0
        self.silent = False  # if true, the worker's unsent calls delay no other worker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - for mypy
        self._transport = transport
        if not isinstance(transport, Channel):  # the relay of a ``Channel`` has authenticated
            self._server.add_unauthenticated(self)
            keep_alive(transport)
        transport.write(self._challenge)
        loop = asyncio.get_running_loop()
        self._authentication_timer = loop.call_later(AUTHENTICATION_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._permits is None and not self._authenticate():
            return
        permits = self._permits
        assert permits is not None  # noqa: S101 - for mypy
        permits.note_message(self)
        at, received = 0, self._received
        while at < len(received):
            message = received[at : at + 1]
            numbers = NUMBERS.get(message, 0) * self._units
            size = SIZES.get(message, 8 * numbers)
            if len(received) < at + 1 + size:
                break
            units = struct.unpack_from(f"!{numbers}d", received, at + 1) if numbers else ()
            if message == HOLD:
                permits.hold(*SECONDS.unpack_from(received, at + 1))
            elif message == KEEP:
                self._keep(permits, *COUNT.unpack_from(received, at + 1))
            elif message == DECLARE:
                self._declare(permits, *DECLARED.unpack_from(received, at + 1))
            elif message == ASK:
                permits.ask(self, units)
            elif message == SPEND:
                permits.spend(units)
            elif message == REMAINING:
                permits.adopt_remaining(units[: self._units], units[self._units :])
            elif message == SENT and self.under_way:
                permits.count_sent(self, 1)
            elif message == GIVE_BACK and self.held:
                self.held -= 1
                permits.give_back(1)
            at += 1 + size
        self._received = received[at:]

    def _authenticate(self) -> bool:
        """Check the answer to the challenge; return whether messages about permits may follow.

        Returns ``False`` for an incomplete or wrong answer, or if the connection changes protocol.
        """
        if len(self._received) < ANSWER.size:
            return False
        self._end_authentication()
        digest, number = ANSWER.unpack_from(self._received)
        right = hmac.digest(self._server.token, self._challenge, "sha256")
        found = self._server.service_of(number)
        if found is None or not hmac.compare_digest(digest, right):
            self._transport.write(REFUSED)
            self._transport.close()
            return False
        self._received = self._received[ANSWER.size :]
        if callable(found):
            protocol = found(self._transport)
            self._transport.set_protocol(protocol)
            if self._received:
                protocol.data_received(self._received)
            return False
        self._permits, numbers = found
        self._permits.join(self, numbers)
        return True

    def _end_authentication(self) -> None:
        self._authentication_timer.cancel()
        self._server.unauthenticated.pop(self, None)

    def _declare(self, permits: _Permits, identity: bytes, held: int, units: int) -> None:
        """Register the worker ``identity`` with ``held`` permits; end its earlier connection."""
        before = self._server.declared.get(identity)
        self._identity, self._units = identity, units
        self._server.declared[identity] = self
        self.held += held
        permits.take(held)
        if before is not None and before is not self:
            before.abort()
            before.end()
        self._transport.write(WELCOME)
        self.tell_pace(permits.numbers)

    def tell_pace(self, numbers: Numbers) -> None:
        """Tell the worker whether each call needs a new permit."""
        if self._identity and not self._transport.is_closing():
            self._transport.write(PACED if numbers.are_paced else UNPACED)

    def _keep(self, permits: _Permits, count: int) -> None:
        """Keep ``count`` permits, for threads of the ended stage; drop the stage's requests."""
        self._stage_ended = True
        permits.forget(self)
        permits.give_back(max(0, self.held - count))
        self.held = min(self.held, count)

    def grant(self) -> None:
        self.held += 1
        self.unacknowledged += 1
        # If the connection is closing, connection_lost gives the permit back later.
        if not self._transport.is_closing():
            self._transport.write(GRANT)

    def probe(self, now: float) -> float:
        """Send a probe, unless an earlier probe is unanswered; return when the probe was sent."""
        if self.probed_at is not None:
            return self.probed_at
        if not self._stage_ended:
            self.probed_at = now
            self._transport.write(PROBE)
        return now

    def abort(self) -> None:
        """Abort the connection, because its worker does not answer or has connected again."""
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_authentication()
        if self._permits is not None:
            # ``exc`` is None if the worker was killed: then the kernel has closed its connections.
            wait = DEATH_SECONDS
            if isinstance(self._transport, Channel):
                wait = DEATH_SECONDS if exc is None else RELAY_SECONDS
            elif exc is not None:
                # A write to the worker has failed. Read what it has sent before: maybe ``KEEP``.
                self.data_received(last_bytes(self._transport))
                wait = BREAK_SECONDS
            self._permits.leave(self)
            self._end_timer = asyncio.get_running_loop().call_later(wait, self.end)

    def end(self) -> None:
        """Free all permits of this connection immediately."""
        if self._end_timer is not None:
            self._end_timer.cancel()
        if self._server.declared.get(self._identity) is self:
            del self._server.declared[self._identity]
        held, self.held = self.held, 0
        if self._permits is not None:
            self._permits.leave(self)
            self._permits.give_back(held)


class _Server:
    """Grants the permits of all limits that this process serves, on a daemon thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.token = secrets.token_bytes(32)
        self.services: list[tuple[_Permits, Numbers] | Serve] = []
        self.indexes: dict[tuple[str, Numbers | None], int] = {}
        self.permits_by_name: dict[str, _Permits] = {}
        self.declared: dict[bytes, _Lease] = {}
        self.unauthenticated: dict[_Lease, None] = {}  # the oldest connection first
        here, self.host = _own_addresses()
        try:
            listening = listening_at(here, BACKLOG)
        except OSError as refused:
            raise RuntimeError(
                f"Limit(scope='job') cannot be served at {here}: {refused.strerror}; name an "
                "address of this machine by spark.driver.bindAddress, or take scope='executor'"
            ) from refused
        self.port = listening.getsockname()[1]
        self._loop = asyncio.SelectorEventLoop()
        threading.Thread(target=self._loop.run_forever, name="rstreams-leases", daemon=True).start()
        serving = self._loop.create_server(
            lambda: _Lease(self), sock=listening, backlog=ACCEPTED_AT_ONCE
        )
        asyncio.run_coroutine_threadsafe(serving, self._loop).result()
        # asyncio uses ``backlog`` for two bounds: the connections accepted in one loop iteration,
        # and the connections that wait to be accepted. Raise the second bound to ``BACKLOG`` again.
        listening.listen(BACKLOG)

    def service_of(self, number: int) -> tuple[_Permits, Numbers] | Serve | None:
        """Return the limit or the ``Serve`` function with this ``number``; ``None`` if unknown."""
        if number == RELAY:
            return lambda transport: Channels(transport, lambda: _Lease(self))
        return self.services[number] if number < len(self.services) else None

    def add_unauthenticated(self, lease: _Lease) -> None:
        """Note a new connection, which must still prove that it knows the token."""
        if len(self.unauthenticated) >= _most_unauthenticated():
            # Close the oldest connection: a client that knows the token answers immediately.
            oldest = next(iter(self.unauthenticated))
            del self.unauthenticated[oldest]
            oldest.abort()
        self.unauthenticated[lease] = None


_lock = threading.Lock()
_server: _Server | None = None


def serve(name: str, numbers: Numbers) -> Address:
    """Serve the permits of the limit ``name`` in this process; return the address. Thread-safe."""
    with _lock:
        server = _running()
        key = name, numbers._replace(made=0.0)  # a job may make an equal limit for each micro-batch
        number = server.indexes.get(key)
        if number is None:
            number = server.indexes[key] = len(server.services)
            server.services.append((server.permits_by_name.setdefault(name, _Permits()), numbers))
        elif not callable(found := server.services[number]) and found[1].made < numbers.made:
            server.services[number] = found[0], numbers
        return Address(server.host, server.port, server.token, number)


def serve_with(name: str, serve: Serve) -> Address:
    """Return an address at which the server passes each new connection to ``serve``.

    Thread-safe. ``serve`` runs on the server's thread. A second call with the same ``name`` returns
    the first address, and ignores its own ``serve``.
    """
    with _lock:
        server = _running()
        number = server.indexes.get((name, None))
        if number is None:
            number = server.indexes[name, None] = len(server.services)
            server.services.append(serve)
        return Address(server.host, server.port, server.token, number)


def is_served_here(address: Address) -> bool:
    """Whether this process serves the limit at ``address``."""
    found = _server
    return found is not None and found.pid == os.getpid() and found.token == address.token


def _running() -> _Server:
    global _server  # noqa: PLW0603
    if _server is None or _server.pid != os.getpid():
        _server = _Server()
    return _server


def _most_unauthenticated() -> int:
    try:
        import resource
    except ImportError:  # Windows has no such module
        return MOST_UNAUTHENTICATED
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        return MOST_UNAUTHENTICATED
    return min(MOST_UNAUTHENTICATED, max(1, descriptors // 4))
