"""Permits of ``Limit(scope="job")`` in a worker, which the driver grants over a connection.

A stage is one function, in one Spark task or on one event loop, whose calls share a ``PermitGate``.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import secrets
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from rstreams_fast.calls.errors import StageError
from rstreams_fast.calls.limits.host_relay import connect_by_relay
from rstreams_fast.calls.limits.leases import is_served_here
from rstreams_fast.calls.limits.limit import Limit
from rstreams_fast.calls.limits.messages import (
    ALIVE,
    ASK,
    CHALLENGE_BYTES,
    COUNT,
    DECLARE,
    DECLARED,
    GIVE_BACK,
    GRANT,
    HOLD,
    KEEP,
    PACED,
    PROBE,
    REFUSED,
    REMAINING,
    SECONDS,
    SENT,
    SPEND,
    UNPACED,
    Address,
    answer_to,
    keep_alive,
    pack_units,
)

if TYPE_CHECKING:
    from rstreams_fast.calls.limits.permits import PermitGate, Weights

__all__ = ["JobPermits", "LimitLost"]

TURNS_UNTIL_SENT: Final = 3
"""After this many iterations of the event loop, a call with a permit counts as sent: by then it has
sent its request to the service, even if it had to connect first."""

CONNECT_SECONDS: Final = 10.0
"""Time-out of one attempt to connect, in seconds. A host with too many pending connections drops
attempts without an answer."""

DRIVER_PATIENCE_SECONDS: Final = 180.0
"""How long, in seconds, a worker tries to reach the driver. Garbage collection may pause the driver
for minutes."""

RELAY_PATIENCE_SECONDS: Final = 10.0
"""How long, in seconds, a worker tries its host's relay before it connects to the driver itself."""

REFUSED_SECONDS: Final = 3.0
"""How long, in seconds, a worker tries if the driver's host refuses connections and no earlier
connection of the stage was successful."""

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 2.0
"""The longest pause between two attempts, in seconds, on average: each pause varies at random.
Pauses double from attempt to attempt."""


class LimitLost(StageError):
    """The stage cannot get permits of a limit any more."""


class JobPermits:
    """The ``_PermitSource`` of a ``PermitGate``: requests permits from the driver for the gate.

    Only the loop's thread may use the object.

    When a connection ends, the driver takes its permits back. A stage that still runs connects
    again: it declares the permits of its running calls, and repeats the requests of its waiting
    calls. Until then no call starts.
    """

    def __init__(self, gate: PermitGate, limit: Limit, loop: asyncio.AbstractEventLoop) -> None:
        self._gate = gate
        self._name = limit.name
        self._loop = loop
        self._are_paced = limit.numbers.are_paced
        self._units = len(limit.numbers.quotas)
        # Units that calls spend while the worker has no connection. The next connection reports
        # them.
        self._unreported = [0.0] * self._units
        self._address: Address = limit.served_at
        self._identity = secrets.token_bytes(16)
        # The connection that can send messages now; None while the worker is not connected.
        self._connection: _Connection | None = None
        self._held = 0
        self._requests: deque[Weights] = deque()  # the cost of each call that waits for a grant
        self._held_until = 0.0
        self._closed = False
        self._was_welcome = False
        self._connecting: asyncio.Task[None]
        self._begin_to_connect()

    def _begin_to_connect(self) -> None:
        self._connecting = self._loop.create_task(self._connect())
        self._connecting.add_done_callback(self._check_connected)

    def _check_connected(self, task: asyncio.Task[None]) -> None:
        """If ``task`` was cancelled or has raised, fail the gate: the next call makes another.

        A program may cancel all tasks of its loop, and then make further calls.
        """
        raised = None if task.cancelled() else task.exception()
        is_current = task is self._connecting and not self._closed
        is_connected = self._connection is not None and self._connection.welcome
        if is_current and not is_connected and (task.cancelled() or raised is not None):
            why = "its task was cancelled" if raised is None else repr(raised)
            lost = LimitLost(f"the connection for the limit {self._name!r} failed: {why}")
            lost.__cause__ = raised
            self._gate.fail(lost)

    async def _connect(self) -> None:
        """Try to connect until the driver welcomes the worker. After a time-out, all calls fail."""
        loop, (host, port, *_) = self._loop, self._address
        began, pause = loop.time(), FIRST_PAUSE
        # A worker that runs in the driver's process needs no relay.
        by_relay = not is_served_here(self._address)
        cause: Exception
        while True:
            tries = (
                (self._try_relay, RELAY_PATIENCE_SECONDS),
                (self._try_driver, DRIVER_PATIENCE_SECONDS),
            )
            for attempt, seconds in tries[not by_relay :]:
                left = began + DRIVER_PATIENCE_SECONDS - loop.time()
                try:
                    async with asyncio.timeout(min(seconds, left)):
                        await attempt()
                except OSError as failed:  # includes TimeoutError, a subclass of OSError
                    cause = failed
                except LimitLost as refused:
                    self._gate.fail(refused)
                    return
                else:
                    self._was_welcome = True
                    return
            hopeless = _is_refusal(cause) and not self._was_welcome
            patience = REFUSED_SECONDS if hopeless else DRIVER_PATIENCE_SECONDS
            if loop.time() >= began + patience:
                break
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 - not all at once
            pause = min(2 * pause, LONGEST_PAUSE)
        at = f"[{host}]" if ":" in host else host
        lost = LimitLost(
            f"nobody serves the limit {self._name!r} at {at}:{port}, where the driver is, or the "
            "client of Spark Connect: workers must reach it; Limit(scope='executor') needs nobody"
        )
        lost.__cause__ = cause
        self._gate.fail(lost)

    async def _try_relay(self) -> None:
        try:
            await self._welcomed_by(self._connect_to_relay)
        except (ConnectionResetError, BrokenPipeError):
            # The relay was about to end, and closed the connection: start a new relay.
            await self._welcomed_by(self._connect_to_relay)

    async def _try_driver(self) -> None:
        await self._welcomed_by(self._connect_to_driver)

    async def _welcomed_by(self, connect: Callable[[_Make], Awaitable[None]]) -> None:
        """Open a connection by ``connect``, and wait until the driver welcomes the worker."""
        connection = _Connection(self, self._loop)
        try:
            await connect(partial(_itself, connection))
            await connection.welcomed
        finally:
            if not connection.welcome:
                connection.abort()

    async def _connect_to_relay(self, make: _Make) -> None:
        await connect_by_relay(make, self._address, CONNECT_SECONDS)

    async def _connect_to_driver(self, make: _Make) -> None:
        async with asyncio.timeout(CONNECT_SECONDS):
            await self._loop.create_connection(make, self._address.host, self._address.port)

    # -- called by _Connection ---------------------------------------------------------------------

    def opened(self, connection: _Connection, challenge: bytes) -> None:
        """Answer the challenge, declare the permits in use, request permits for waiting calls."""
        if self._closed:
            connection.abort()
            return
        message = answer_to(challenge, self._address)
        message += DECLARE + DECLARED.pack(self._identity, self._held, self._units)
        if (rest := self._held_until - self._loop.time()) > 0:
            message += HOLD + SECONDS.pack(rest)
        if any(self._unreported):
            message += SPEND + pack_units(tuple(self._unreported))
            self._unreported = [0.0] * self._units
        self._connection = connection
        connection.send(message + b"".join(ASK + pack_units(weights) for weights in self._requests))
        self._gate.suspend(False)

    def refusal(self) -> LimitLost:
        """Return the error to raise if the driver refuses the answer to its challenge."""
        return LimitLost(f"the driver no longer serves the limit {self._name!r}")

    def granted(self, count: int) -> None:
        """Distribute ``count`` permits from the driver among the waiting calls."""
        self._held += count
        if self._are_paced:
            self._loop.call_soon(self._report_sent, self._connection, count, 0)
        for _ in range(count):
            self._gate.grant(None, self._requests.popleft())

    def set_paced(self, are_paced: bool) -> None:
        """The limit's rate or units have changed: set whether each call needs a new permit."""
        if are_paced != self._are_paced:
            self._are_paced = are_paced
            self._gate.set_paced(are_paced)

    def _report_sent(self, connection: _Connection | None, count: int, turns: int) -> None:
        """After ``TURNS_UNTIL_SENT`` loop iterations, report to the driver that calls were sent."""
        if turns < TURNS_UNTIL_SENT:
            self._loop.call_soon(self._report_sent, connection, count, turns + 1)
        elif connection is self._connection:
            # Only the connection that granted these calls can count them as sent.
            self._send(SENT * count)

    def lost(self, connection: _Connection) -> None:
        """Handle the end of ``connection``: connect again, unless ``_connect`` still runs."""
        if connection is self._connection:
            self._connection = None
            if not self._closed:
                self._gate.suspend(True)
        if connection.welcome and not self._closed:
            self._begin_to_connect()

    # -- called by PermitGate, see _PermitSource ---------------------------------------------------

    def _send(self, message: bytes) -> None:
        if self._connection is not None:
            self._connection.send(message)

    def ask(self, weights: Weights) -> None:
        self._requests.append(weights)
        self._send(ASK + pack_units(weights))

    def withdraw(self) -> bool:
        return False  # the driver still grants the request; then the gate gives the permit back

    def spend(self, change: Weights) -> None:
        if self._connection is None:
            self._unreported = [sum(both) for both in zip(self._unreported, change, strict=True)]
        else:
            self._send(SPEND + pack_units(change))

    def adopt_remaining(self, left: Weights, weights: Weights) -> None:
        self._send(REMAINING + pack_units(left + weights))

    def give_back(self, permit: None) -> None:  # noqa: ARG002
        self._held -= 1
        self._send(GIVE_BACK)

    # ``offer`` need not do more than ``give_back``: the driver grants the permit to other stages.
    offer = give_back

    def is_wanted(self) -> bool:
        return True  # a worker does not know: only the driver sees all requests

    def hold(self, seconds: float) -> None:
        self._held_until = max(self._held_until, self._loop.time() + seconds)
        self._send(HOLD + SECONDS.pack(seconds))

    def end(self, running_threads: int) -> Callable[[], object]:
        """Give back all permits except ``running_threads`` of them; close the connection.

        The remaining permits belong to threads that still run a call. Each of these threads calls
        the returned function when its call ends, to give its permit back.
        """
        self._closed = True
        self._connecting.cancel()
        connection, self._connection = self._connection, None
        if connection is None:
            return int
        copy = connection.keep(running_threads)
        if copy is None:
            return int
        return partial(self._give_one_back, copy, iter(range(1, running_threads)))

    def _give_one_back(self, connection: int, others: Iterator[int]) -> None:
        # The write fails if the driver no longer serves the limit. Then nobody needs the permit.
        with contextlib.suppress(OSError):
            os.write(connection, GIVE_BACK)
        if next(others, None) is None:
            os.close(connection)


class _Connection(asyncio.Protocol):
    """Protocol of a connection to the driver: answers the challenge, then receives permits."""

    def __init__(self, permits: JobPermits, loop: asyncio.AbstractEventLoop) -> None:
        self._permits = permits
        self._transport: asyncio.Transport | None = None
        self._challenge = b""
        self.welcome = False
        self.welcomed: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast without an isinstance check, because uvloop has its own transport classes.
        self._transport = cast(asyncio.Transport, transport)
        # keep_alive raises if the socket is closed already. Then connection_lost follows.
        with contextlib.suppress(OSError):
            keep_alive(transport)

    def data_received(self, data: bytes) -> None:
        if len(self._challenge) < CHALLENGE_BYTES:
            missing = CHALLENGE_BYTES - len(self._challenge)
            self._challenge += data[:missing]
            if len(self._challenge) < CHALLENGE_BYTES:
                return
            data = data[missing:]
            self._permits.opened(self, self._challenge)
        if data and not self.welcome:
            if data.startswith(REFUSED):
                self._fail(self._permits.refusal())
                return
            self.welcome = True
            if not self.welcomed.done():
                self.welcomed.set_result(None)
        if (paced := data.rfind(PACED)) != (unpaced := data.rfind(UNPACED)):
            self._permits.set_paced(paced > unpaced)
        if PROBE in data:
            self.send(ALIVE)
        if granted := data.count(GRANT):
            self._permits.granted(granted)

    def connection_lost(self, exc: Exception | None) -> None:
        ended = ConnectionResetError("the connection has ended")
        self._fail(exc if isinstance(exc, OSError) else ended)
        self._permits.lost(self)

    def _fail(self, failure: Exception) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(failure)

    def send(self, message: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(message)

    def abort(self) -> None:
        if not self.welcomed.done():
            self.welcomed.cancel()
        if self._transport is not None:
            self._transport.abort()

    def keep(self, running_threads: int) -> int | None:
        """Tell the driver that the stage ends, and close the connection.

        If ``running_threads`` > 0, return a copy of the descriptor, by which these threads give
        their permits back. The message ``KEEP`` says that the stage ends on purpose: if unread data
        makes the kernel reset the connection, the driver does not wait for the worker to connect
        again.
        """
        transport: Any = self._transport
        try:
            if transport.is_closing() or transport.get_write_buffer_size():
                return None
            connection = transport.get_extra_info("socket").fileno()
            os.write(connection, KEEP + COUNT.pack(running_threads))
            # This copy keeps the connection open when ``abort`` closes the original descriptor.
            return os.dup(connection) if running_threads else None
        except OSError:
            return None
        finally:
            self.abort()


_Make = Callable[[], _Connection]


def _itself(connection: _Connection) -> _Connection:
    return connection


def _is_refusal(cause: Exception) -> bool:
    """Whether the driver's host refused the connection, or its name has no address."""
    # If the driver has several addresses, asyncio raises one error for all attempts. Only its text
    # shows that a connection was refused.
    refused = f"[Errno {errno.ECONNREFUSED}]" in str(cause)
    return refused or isinstance(cause, ConnectionRefusedError | socket.gaierror)
