"""``Budget``: bounds the total that calls spend, in one process or in a whole Spark job."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, Final, Protocol, cast

from rstreams_fast._checks import check_choice
from rstreams_fast.calls.errors import BudgetSpentError, StageError
from rstreams_fast.calls.functions import check_amount
from rstreams_fast.calls.limits.leases import serve_with
from rstreams_fast.calls.limits.messages import CHALLENGE_BYTES, REFUSED, Address, answer_to
from rstreams_fast.runtime.at_exit import call_at_process_end
from rstreams_fast.runtime.finalizers import call_from_finalizer
from rstreams_fast.runtime.fork_lock import ForkLock

__all__ = ["CALLS", "Account", "Budget", "account_of"]

CALLS: Final = "calls"

FIRST_CALLS: Final = 16
"""The number of calls in a worker's first lease, when the worker's rate of calls is not known yet.
A lease is the part of a budget that the worker may spend without asking the driver again."""

LEASE_SECONDS: Final = 0.5
"""A worker leases about as much as it spends in this number of seconds. Leases are small, because
the whole lease of a killed worker counts as spent."""

LEASE_DIVISOR: Final = 16
"""A lease is at most the rest of the budget / (``LEASE_DIVISOR`` * the number of workers)."""

LEAST_LEASE: Final = 1 / 4096
"""The smallest lease of a unit, as a fraction of the budget's amount of this unit. For the unit
``calls`` the smallest lease is one call."""

ASK_AGAIN_SECONDS: Final = 1.0
"""After the driver has reported that the budget is spent, a worker asks again only after this
number of seconds. Meanwhile other workers may have returned their leases."""

PATIENCE_SECONDS: Final = 180.0
"""How long a worker tries to reach the driver, which a garbage collection may pause for minutes."""

ANSWER_SECONDS: Final = 10.0
"""The time-out for a connection to the driver, and for each answer of the driver, in seconds."""


class Budget:
    """Bounds what all calls together may spend, such as tokens, money, or the calls themselves.

    When the budget is spent, calls fail immediately with ``BudgetSpentError``. The unit ``calls``
    counts the attempts that reach the service, including attempts that raise ``RetryAfter``. An
    answer from a cache or a journal does not count. For any other unit, such as tokens or money,
    the function reports the spent amount by calling ``spent``. Until the report, the budget counts
    the estimate of the ``Limit``, if the limit has a unit of this name. A call starts only if some
    amount of each unit is left. So there are never more ``calls`` than the budget allows. But the
    calls in flight together may spend more of another unit than is left. An attempt that a spent
    budget refuses is not repeated, and a ``Circuit`` does not count it as a failure. Immutable;
    thread-safe.

    ```python
    import rstreams_fast as rsf

    spend = rsf.Budget("models", calls=10_000, money=20.0)


    @rsf.Policy(budget=spend)
    async def summary_of(text):
        rsf.spent(money=0.002)
        return text[:40]
    ```

    Args:
        name: Budgets with the same name share what was spent. The newest budget with this name
            sets the amounts, so that a notebook can raise the amounts.
        scope: ``"job"``: all workers that get the budget share it with the process that made it.
            The workers lease parts of the budget over the network, so they must be able to reach
            that process. The lease of a killed worker counts as spent. ``"process"``: each process
            has its own budget.
        **units: The amount of each unit, a finite number >= 0; at least one. ``calls`` is a whole
            number.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value, or there is no unit.
    """

    def __init__(self, name: str, *, scope: str = "job", **units: float) -> None:
        if not isinstance(name, str):
            raise TypeError(f"Budget(name) must be a str, got {type(name).__name__}")
        if not name:
            raise ValueError("Budget(name) is empty")
        if not units:
            raise ValueError(f"Budget({name!r}) bounds nothing: give calls, tokens or the like")
        check_choice("Budget(scope)", scope, ("process", "job"))
        self.name: Final = name
        self.scope: Final = scope
        self.units: Final = {
            unit: check_amount(f"Budget({unit})", amount) for unit, amount in units.items()
        }
        if not self.units.get(CALLS, 0.0).is_integer():
            raise ValueError(f"Budget(calls) must be a whole number, got {units[CALLS]!r}")
        self.made: Final = time.time()
        self._address: Address | None = None
        account_of(self)  # sets the amounts of this name

    @property
    def spent(self) -> dict[str, float]:
        """The spent amount of each unit.

        In the process that made the budget these are the amounts of the whole job. What a worker
        spends is added when the worker requests its next lease, and when it ends. In a worker these
        are the amounts since the worker's latest request.
        """
        return account_of(self).amounts()[0]

    @property
    def left(self) -> dict[str, float]:
        """The unspent and unleased amount of each unit. In a worker: the rest of its lease."""
        return account_of(self).amounts()[1]

    def describe(self) -> str:
        """Return a readable text with the amount of each unit."""
        units = ", ".join(f"{amount:.12g} {unit}" for unit, amount in self.units.items())
        where = "the whole job" if self.scope == "job" else "each process"
        return f"budget {self.name!r}: {units}, by {where}"

    def __repr__(self) -> str:
        units = ", ".join(f"{unit}={amount:.12g}" for unit, amount in self.units.items())
        return f"Budget({self.name!r}, {units})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state, with the address of the process that made the budget, for workers."""
        state = dict(self.__dict__)
        if self.scope == "job" and self._address is None:
            account = cast(_LocalAccount, account_of(self))
            state["_address"] = serve_with(f"budget {self.name}", account.serve)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class Account(Protocol):
    """Counts how much of a budget the calls of one process spend. Thread-safe."""

    def take(self, wanted: Mapping[str, float]) -> bool:
        """Take the ``wanted`` amounts for one call; return whether that was possible.

        After ``False`` the caller must call ``refill``, and then try again. Raises
        ``BudgetSpentError`` if nothing is left of a unit.
        """

    def refill(self) -> None:
        """Lease another part of the budget. This method may block."""

    def add(self, change: Mapping[str, float]) -> None:
        """Add ``change`` to the spent amounts. Negative numbers return amounts to the budget."""

    def amounts(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return two dicts by unit: the spent amounts, and the amounts that are left."""

    def join(self, user: object) -> None:
        """Register ``user``, a ``Meter`` that spends the budget, until it is garbage-collected.

        When no user is left, the account of a worker returns its lease (its part of the budget).
        """


class _LocalAccount:
    """The account of a budget in the process that made the budget."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._made = 0.0
        self._units: dict[str, float] = {}
        self._spent: dict[str, float] = {}
        self._leased: dict[str, float] = {}
        self._leases = 0
        # Reentrant: a finalizer may interrupt the thread that holds the lock, and take it again.
        self._lock = threading.RLock()

    def set_amounts(self, budget: Budget) -> None:
        """Adopt the amounts of ``budget``, unless a newer budget has already set the amounts."""
        with self._lock:
            if budget.made >= self._made:
                self._made, self._units = budget.made, budget.units

    def take(self, wanted: Mapping[str, float]) -> bool:
        with self._lock:
            for unit in self._units:
                if self._left(unit) <= 0:
                    raise _spent_error(self._name, unit)
            self.add(wanted)
        return True

    def refill(self) -> None:
        """Do nothing: ``take`` of this class never returns ``False``, so no refill is needed."""

    def add(self, change: Mapping[str, float]) -> None:
        with self._lock:
            for unit, amount in change.items():
                self._spent[unit] = self._spent.get(unit, 0.0) + amount

    def amounts(self) -> tuple[dict[str, float], dict[str, float]]:
        with self._lock:
            spent = {unit: self._spent.get(unit, 0.0) for unit in self._units}
            return spent, {unit: max(0.0, self._left(unit)) for unit in self._units}

    def join(self, user: object) -> None:
        """Do nothing: only the account of a worker has a lease to return."""

    def _left(self, unit: str) -> float:
        spent = self._spent.get(unit, 0.0) + self._leased.get(unit, 0.0)
        return self._units[unit] - spent

    # -- leases of the workers ---------------------------------------------------------------------

    def serve(self, transport: asyncio.Transport) -> asyncio.Protocol:
        """Return a new asyncio protocol for the worker at the other end of ``transport``."""
        self._leases += 1
        return _Lease(self, transport)

    def lease(
        self, lease: Mapping[str, float], used: Mapping[str, float], wanted: Mapping[str, float]
    ) -> tuple[dict[str, float], str]:
        """Replace a worker's ``lease`` (its part of the budget) by a new lease of about ``wanted``.

        ``used`` is what the worker has spent of the old lease. Returns the new lease, and the name
        of a unit of which nothing is left (otherwise an empty text). The new lease is empty if
        nothing is left of a unit, or if ``wanted`` is empty.
        """
        with self._lock:
            for unit, amount in lease.items():
                self._leased[unit] = self._leased.get(unit, 0.0) - amount
            self.add(used)
            found: dict[str, float] = {}
            if not wanted:
                return found, ""
            for unit, amount in self._units.items():
                if (left := self._left(unit)) <= 0:
                    return {}, unit
                least = 1.0 if unit == CALLS else amount * LEAST_LEASE
                share = max(least, left / (LEASE_DIVISOR * max(1, self._leases)))
                lent = min(left, share, max(least, wanted.get(unit, share)))
                found[unit] = float(int(lent) or 1) if unit == CALLS else lent
            for unit, amount in found.items():
                self._leased[unit] = self._leased.get(unit, 0.0) + amount
        return found, ""

    def end(self, lease: Mapping[str, float]) -> None:
        """Count a worker's whole ``lease`` as spent, because the worker's connection has ended."""
        with self._lock:
            self._leases -= 1
        self.lease(lease, lease, {})


class _Lease(asyncio.Protocol):
    """The connection of one worker, and the worker's lease: its part of the budget.

    Each line of JSON from the worker returns the old lease, and requests a new lease.
    """

    def __init__(self, account: _LocalAccount, transport: asyncio.Transport) -> None:
        self._account = account
        self._transport = transport
        self._received = b""
        self._lease: dict[str, float] = {}

    def data_received(self, data: bytes) -> None:
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            lease = self._account.lease(self._lease, request["used"], request["wanted"])
            self._lease = lease[0]
            if request["wanted"]:
                self._transport.write(json.dumps(lease).encode() + b"\n")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._account.end(self._lease)


class _LeasedAccount:
    """The account of a budget in a worker, with leases (parts of the budget) from the driver."""

    def __init__(self, name: str, address: Address) -> None:
        self._name = name
        self._address = address
        # Reentrant: a finalizer may interrupt the thread that holds the lock, and take it again.
        self._lock = threading.RLock()
        self._refill_lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._lease_rest: dict[str, float] = {}
        self._used: dict[str, float] = {}  # the spent amounts since the last request to the driver
        self._leased_at = 0.0
        self._spent_unit = ""
        self._spent_until = 0.0
        self._users = 0
        call_at_process_end(self._give_back)

    def take(self, wanted: Mapping[str, float]) -> bool:
        with self._lock:
            if self._lease_rest and all(amount > 0 for amount in self._lease_rest.values()):
                self.add(wanted)
                return True
            if self._spent_unit and time.monotonic() < self._spent_until:
                raise _spent_error(self._name, self._spent_unit)
        return False

    def refill(self) -> None:
        with self._refill_lock:
            with self._lock:
                if self._lease_rest and all(amount > 0 for amount in self._lease_rest.values()):
                    return  # another thread has renewed the lease meanwhile
                if self._spent_unit and time.monotonic() < self._spent_until:
                    return
            self._renew_lease(self._wanted_amounts())

    def add(self, change: Mapping[str, float]) -> None:
        with self._lock:
            for unit, amount in change.items():
                self._used[unit] = self._used.get(unit, 0.0) + amount
                if unit in self._lease_rest:
                    self._lease_rest[unit] -= amount

    def amounts(self) -> tuple[dict[str, float], dict[str, float]]:
        with self._lock:
            return dict(self._used), dict(self._lease_rest)

    def join(self, user: object) -> None:
        with self._lock:
            self._users += 1
        weakref.finalize(user, call_from_finalizer, self._leave).atexit = False

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            is_unused = not self._users
        if is_unused:
            self._give_back()

    def _give_back(self) -> None:
        """Report to the driver what the calls have spent, and return the rest of the lease."""
        if not self._refill_lock.acquire(blocking=False):
            return
        try:
            if self._connection is not None:
                used, rest = self._end_lease()
                try:
                    self._send({"used": used, "wanted": {}})
                except OSError:
                    self.add(self._disconnect(used, rest))
        finally:
            self._refill_lock.release()

    def _end_lease(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return what the calls have spent since the last request, and the rest of the lease."""
        with self._lock:
            used, self._used = self._used, {}
            rest, self._lease_rest = self._lease_rest, {}
        return used, rest

    def _disconnect(self, used: dict[str, float], rest: dict[str, float]) -> dict[str, float]:
        """Close the broken connection, and return what is still to be reported of ``used``.

        The driver counts the whole lease of a broken connection as spent. So this is only what the
        calls have spent beyond the lease: the whole amount if the lease was empty.
        """
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        return {unit: max(0.0, -rest.get(unit, -of)) for unit, of in used.items()}

    def _wanted_amounts(self) -> dict[str, float]:
        """Return the amounts that the worker spends in ``LEASE_SECONDS`` at its present rate."""
        if not self._leased_at:
            return {CALLS: FIRST_CALLS}
        seconds = max(time.monotonic() - self._leased_at, 0.01)
        with self._lock:
            used = {unit: amount for unit, amount in self._used.items() if amount > 0}
        return {CALLS: 1.0} | {unit: of * LEASE_SECONDS / seconds for unit, of in used.items()}

    def _renew_lease(self, wanted: Mapping[str, float]) -> None:
        used, rest = self._end_lease()
        until, pause = time.monotonic() + PATIENCE_SECONDS, 0.02
        while True:
            try:
                found, spent_unit = self._exchange({"used": used, "wanted": wanted})
            except OSError as failed:
                used = self._disconnect(used, rest)
                hopeless = isinstance(failed, ConnectionRefusedError) and not self._leased_at
                if hopeless or time.monotonic() >= until:
                    lost = StageError(f"nobody keeps the budget {self._name!r} any more")
                    raise lost from failed
                time.sleep(pause)
                pause = min(2 * pause, 2.0)
            else:
                break
        with self._lock:
            self._leased_at = time.monotonic()
            self._spent_unit, self._spent_until = spent_unit, self._leased_at + ASK_AGAIN_SECONDS
            # Subtract from the new lease what calls have spent since the request was sent.
            self._lease_rest = {unit: of - self._used.get(unit, 0.0) for unit, of in found.items()}

    def _exchange(self, request: dict[str, Any]) -> tuple[dict[str, float], str]:
        connection = self._send(request)
        received = b""
        while not received.endswith(b"\n"):
            if not (part := connection.recv(1 << 12)):
                raise ConnectionResetError("the connection has ended")
            received += part
            if received == REFUSED:
                raise StageError(f"the driver no longer keeps the budget {self._name!r}")
        found, spent_unit = json.loads(received)
        return found, spent_unit

    def _send(self, message: dict[str, Any]) -> socket.socket:
        connection = self._connection or self._connect()
        connection.sendall(json.dumps(message).encode() + b"\n")
        return connection

    def _connect(self) -> socket.socket:
        host, port, *_ = self._address
        connection = socket.create_connection((host, port), ANSWER_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        challenge = b""
        while len(challenge) < CHALLENGE_BYTES:
            if not (part := connection.recv(CHALLENGE_BYTES - len(challenge))):
                raise ConnectionResetError("the connection has ended")
            challenge += part
        connection.sendall(answer_to(challenge, self._address))
        self._connection = connection
        return connection


def _spent_error(name: str, unit: str) -> BudgetSpentError:
    return BudgetSpentError(f"the budget {name!r} is spent: there are no {unit} left")


_accounts: dict[tuple[int, str, Address | None], _LocalAccount | _LeasedAccount] = {}
_accounts_lock: Final = ForkLock()


def account_of(budget: Budget) -> Account:
    key = os.getpid(), budget.name, budget._address
    with _accounts_lock:
        found = _accounts.get(key)
        if found is None:
            is_local = budget._address is None
            found = _accounts[key] = (
                _LocalAccount(budget.name)
                if is_local
                else _LeasedAccount(budget.name, cast(Address, budget._address))
            )
    if isinstance(found, _LocalAccount):
        found.set_amounts(budget)
    return found
