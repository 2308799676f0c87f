"""The permits of ``Limit(scope="job")`` in a worker, over a connection to the driver."""

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
"""After this number of turns of the loop a call with a permit has sent its request, even if it had
to connect first."""

CONNECT_SECONDS: Final = 10.0
"""Time-out of one attempt to connect; a host with too many pending connections drops attempts."""

DRIVER_PATIENCE_SECONDS: Final = 180.0
"""How long a worker tries to reach the driver, which garbage collection may pause for minutes."""

RELAY_PATIENCE_SECONDS: Final = 10.0
"""How long a worker waits for the relay of its host before it tries to reach the driver itself."""

REFUSED_SECONDS: Final = 3.0
"""How long a worker tries if the host refuses the connection, and none has succeeded before."""

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 2.0
"""Seconds between two attempts; each pause is twice the previous one."""


class LimitLost(StageError):
    """The stage cannot get permits any more."""


class JobPermits:
    """A ``_PermitSource`` that asks the driver for permits. Only the loop's thread may use it.

    When a connection ends, the driver takes its permits back. A stage that goes on connects again.
    The stage declares the permits of its running calls, and asks again for the permits of its
    waiting calls. Until then no call begins.
    """

    def __init__(self, gate: PermitGate, limit: Limit, loop: asyncio.AbstractEventLoop) -> None:
        self._gate = gate
        self._name = limit.name
        self._loop = loop
        self._are_paced = limit.numbers.are_paced
        self._units = len(limit.numbers.quotas)
        # Units that were spent while there was no connection: the next connection reports them.
        self._unreported = [0.0] * self._units
        self._address: Address = limit.served_at
        self._identity = secrets.token_bytes(16)
        # The connection over which messages can be sent now, if there is one.
        self._connection: _Connection | None = None
        self._held = 0
        self._requests: deque[Weights] = deque()  # the units of the calls that wait for a grant
        self._held_until = 0.0
        self._closed = False
        self._was_welcome = False
        self._connecting = loop.create_task(self._connect())

    async def _connect(self) -> None:
        """Try to connect until the driver welcomes the worker, or the time is over."""
        loop, (host, port, *_) = self._loop, self._address
        began, pause = loop.time(), FIRST_PAUSE
        # A worker in the driver's process needs no relay.
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
                except OSError as failed:  # this includes TimeoutError, a subclass of OSError
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
            # The relay was ending, and accepted no more connections: start another relay.
            await self._welcomed_by(self._connect_to_relay)

    async def _try_driver(self) -> None:
        await self._welcomed_by(self._connect_to_driver)

    async def _welcomed_by(self, connect: Callable[[_Make], Awaitable[None]]) -> None:
        """Connect, and wait until the driver welcomes the worker."""
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

    # -- messages of a connection ------------------------------------------------------------------

    def opened(self, connection: _Connection, challenge: bytes) -> None:
        """Answer the challenge, declare the permits in use, and ask for those of waiting calls."""
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
        """Return the error for a refusal by the driver, or by another process at its address."""
        return LimitLost(f"the driver no longer serves the limit {self._name!r}")

    def granted(self, count: int) -> None:
        """Pass ``count`` permits from the driver to the waiting calls."""
        self._held += count
        if self._are_paced:
            self._loop.call_soon(self._report_sent, self._connection, count, 0)
        for _ in range(count):
            self._gate.grant(None, self._requests.popleft())

    def set_paced(self, are_paced: bool) -> None:
        """Note whether each call needs a new permit: the limit's rate or units may have changed."""
        if are_paced != self._are_paced:
            self._are_paced = are_paced
            self._gate.set_paced(are_paced)

    def _report_sent(self, connection: _Connection | None, count: int, turns: int) -> None:
        """Report to the driver, some turns later, that ``count`` calls have sent their requests."""
        if turns < TURNS_UNTIL_SENT:
            self._loop.call_soon(self._report_sent, connection, count, turns + 1)
        elif connection is self._connection:
            # The driver counts these calls only for the connection that granted them.
            self._send(SENT * count)

    def lost(self, connection: _Connection) -> None:
        """Connect again after ``connection`` has ended, unless a task already connects."""
        if connection is self._connection:
            self._connection = None
            if not self._closed:
                self._gate.suspend(True)
        if connection.welcome and not self._closed:
            self._connecting = self._loop.create_task(self._connect())

    # -- requests of the gate ----------------------------------------------------------------------

    def _send(self, message: bytes) -> None:
        if self._connection is not None:
            self._connection.send(message)

    def ask(self, weights: Weights) -> None:
        self._requests.append(weights)
        self._send(ASK + pack_units(weights))

    def withdraw(self) -> bool:
        return False  # the driver grants the request, and the gate gives the permit back

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

    # ``offer`` gives the permit back: the driver serves the waiting stages in turn.
    offer = give_back

    def is_wanted(self) -> bool:
        return True  # only the driver knows

    def hold(self, seconds: float) -> None:
        self._held_until = max(self._held_until, self._loop.time() + seconds)
        self._send(HOLD + SECONDS.pack(seconds))

    def end(self, running_threads: int) -> Callable[[], object]:
        """Return all permits except those of the ``running_threads``; close the connection.

        The calls on these threads still run. Each thread calls the returned function to give its
        permit back.
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
        # If the driver no longer serves the limit, the write fails, and the permit is of no use.
        with contextlib.suppress(OSError):
            os.write(connection, GIVE_BACK)
        if next(others, None) is None:
            os.close(connection)


class _Connection(asyncio.Protocol):
    """One connection to the driver: the challenge, the welcome, then permits."""

    def __init__(self, permits: JobPermits, loop: asyncio.AbstractEventLoop) -> None:
        self._permits = permits
        self._transport: asyncio.Transport | None = None
        self._challenge = b""
        self.welcome = False
        self.welcomed: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Cast, but do not check: uvloop has transport classes of its own.
        self._transport = cast(asyncio.Transport, transport)
        # If the socket is closed already, connection_lost follows.
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
        """Close the connection; return a copy of its descriptor if there are ``running_threads``.

        The message ``KEEP`` tells the driver that this stage ends on purpose. The kernel resets a
        connection with unread data. After a reset without ``KEEP`` the driver would wait for the
        worker.
        """
        transport: Any = self._transport
        try:
            if transport.is_closing() or transport.get_write_buffer_size():
                return None
            connection = transport.get_extra_info("socket").fileno()
            os.write(connection, KEEP + COUNT.pack(running_threads))
            # The connection stays open as long as a copy of its descriptor is open.
            return os.dup(connection) if running_threads else None
        except OSError:
            return None
        finally:
            self.abort()


_Make = Callable[[], _Connection]


def _itself(connection: _Connection) -> _Connection:
    return connection


def _is_refusal(cause: Exception) -> bool:
    """Whether no process listens at the driver's addresses, or its name has no address."""
    # If the driver has several addresses, asyncio raises one error: only its text shows that a
    # connection was refused.
    refused = f"[Errno {errno.ECONNREFUSED}]" in str(cause)
    return refused or isinstance(cause, ConnectionRefusedError | socket.gaierror)
