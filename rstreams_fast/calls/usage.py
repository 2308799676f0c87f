"""Counts the units that calls spend, such as tokens: first an estimate, later the real cost."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar, Token
from functools import partial
from operator import attrgetter
from typing import Any, Final

from rstreams_fast.calls.budget import CALLS, Account, account_of
from rstreams_fast.calls.circuit import circuit_of
from rstreams_fast.calls.counts import CallCounts
from rstreams_fast.calls.functions import check_amount
from rstreams_fast.calls.limits.blocking import TimedGate, release_again
from rstreams_fast.calls.limits.limit import Limit, weights_of_key
from rstreams_fast.calls.limits.nesting import NestedCall, running_call
from rstreams_fast.calls.limits.pace import Pace
from rstreams_fast.calls.limits.permits import PermitGate
from rstreams_fast.calls.retry import RetryAfter
from rstreams_fast.calls.settings import CallSettings, PolicySettings

__all__ = ["Meter", "Usage", "Weigh", "meter_of", "observed", "spent"]

_LEFT: Final = "_left"


Weigh = Callable[[tuple[Any, ...]], dict[str, float]]
"""A function that estimates from a call's arguments how much of each unit the call will spend."""


class Usage(NestedCall):
    """The units of one attempt. The function's thread writes them, the loop's thread reads them."""

    __slots__ = ("counted", "estimate", "left", "passed_circuit", "reset", "spent")

    def __init__(
        self, estimate: dict[str, float], counted: frozenset[str], outer: Usage | None
    ) -> None:
        """``counted`` contains the names of the units that the limit and the budget count.

        ``outer``: if another function with a policy makes this call, the usage of that function.
        """
        super().__init__(outer)
        self.estimate = estimate
        self.counted = counted
        self.spent: dict[str, float] = {}
        self.left: dict[str, float] = {}
        self.reset: float | None = None
        self.passed_circuit = False

    @property
    def weights(self) -> tuple[float, ...]:
        """The estimate of each unit of the limit, in the order of the units' names."""
        return tuple(self.estimate.values())

    def cost(self, unit: str, refused: bool) -> float:
        """Return how much of ``unit`` the attempt has spent.

        This is the amount that the function has reported. Without a report it is the estimate, or 0
        if the service has refused the attempt.
        """
        return self.spent.get(unit, 0.0 if refused else self.estimate.get(unit, 0.0))

    def settle(self, gate: PermitGate | TimedGate, pace: Pace, refused: bool) -> bool:
        """Charge the limit of ``gate`` for the difference between real cost and estimate.

        Returns whether the service has too few units left for another call with this estimate.
        """
        change = []
        for unit, estimate in self.estimate.items():
            change.append(self.cost(unit, refused) - estimate)
        gate.spend(tuple(change))
        if not self.left:
            return False
        left = tuple(self.left.get(unit, math.inf) for unit in self.estimate)
        gate.adopt_remaining(left, self.weights)
        return any(map(float.__lt__, left, pace.margins(self.weights)))


_current: Final[ContextVar[Usage | None]] = ContextVar("current_usage", default=None)


def _usage_of(word: str, unit: str, names_of: Callable[[Usage], Collection[str]]) -> Usage | None:
    """Return the usage of the innermost running call whose policy has the ``unit``.

    ``None``: no policy of a running call has units. Raises ``TypeError`` if these policies have
    other units only. ``word`` is the name of the argument in the text of the error.
    """
    usage, known = _current.get(), set[str]()
    while usage is not None:
        names = names_of(usage)
        if unit in names:
            return usage
        known.update(names)
        usage = usage.outer
    if known:
        raise TypeError(
            f"{word}: the policy of this call does not count {unit!r}; "
            f"it counts {', '.join(sorted(known))}"
        )
    return None


def spent(**units: float) -> None:
    """Report the units that the current call has spent: ``spent(tokens=812)``.

    ``spent`` is for functions whose ``Policy`` has a limit with units, or a budget of units. In
    other functions it has no effect. If an attempt calls ``spent`` several times, the amounts add
    up. At the end of the attempt the sum replaces the estimate of ``Limit(weigh=...)``. If a
    function with a policy calls another function with a policy, the amount goes to the innermost
    policy that counts the unit. Any thread that runs the function may call ``spent``.

    Args:
        **units: The amount of each unit, a finite number >= 0.

    Raises:
        TypeError: An amount is no number; ``calls`` is among the units; or the limits and budgets
            of the call count other units only, so that the name may be mistyped.
        ValueError: An amount is negative or not finite.
    """
    if CALLS in units:
        raise TypeError("spent(calls): the policy counts them itself")
    for unit, amount in units.items():
        word = f"spent({unit})"
        found = check_amount(word, amount)
        if (usage := _usage_of(word, unit, _counted_units)) is not None:
            usage.spent[unit] = usage.spent.get(unit, 0.0) + found


def observed(*, reset: float | None = None, **left: float) -> None:
    """Report how many units the service has left: ``observed(tokens_left=1200)``.

    Many services send these numbers in the headers of an answer. ``observed`` is for functions
    whose ``Policy`` has a limit with units. In other functions it has no effect. The limit adopts
    the numbers, since other clients may use the quota, too. If too few units are left for another
    call, calls wait. Any thread that runs the function may call ``observed``.

    Args:
        reset: Seconds until the service restarts its count, if it counts in windows of time. If too
            few units are left, no call starts before that time. Omit ``reset`` for a service that
            refills the quota continuously.
        **left: The amount left of each unit. The argument's name is the unit's name and ``_left``.

    Raises:
        TypeError: An amount is no number; a name does not end in ``_left``; or the limits of the
            call have other units only, so that the name may be mistyped.
        ValueError: An amount is negative or not finite.
    """
    after = None if reset is None else check_amount("observed(reset)", reset)
    if (innermost := _current.get()) is not None:
        innermost.reset = after
    for name, amount in left.items():
        word = f"observed({name})"
        if not name.endswith(_LEFT):
            raise TypeError(f"{word}: a unit's name and '_left' are meant")
        found, unit = check_amount(word, amount), name.removesuffix(_LEFT)
        if (usage := _usage_of(word, unit, _estimated_units)) is not None:
            usage.left[unit] = found
            usage.reset = after


_counted_units: Final = attrgetter("counted")
_estimated_units: Final = attrgetter("estimate")


class Meter:
    """Counts the units of each attempt, for the limit and the budget of a policy.

    Before an attempt the meter estimates the units, and waits for a permit. After the attempt it
    replaces the estimate by the real cost.
    """

    def __init__(
        self,
        policy: PolicySettings,
        gate: PermitGate | TimedGate | None,
        loop: asyncio.AbstractEventLoop | None,
        counts: CallCounts,
        weigh: Weigh,
    ) -> None:
        """Without a ``loop`` the meter blocks the calling thread while a call waits."""
        self._gate: Any = gate
        self._pace = None if policy.limit is None else Pace(policy.limit.numbers)
        self._circuit = None if policy.circuit is None else circuit_of(policy.circuit)
        self._account = None if policy.budget is None else account_of(policy.budget)
        self._units: dict[str, float] = {} if policy.budget is None else policy.budget.units
        self._counted = frozenset(policy.units)
        if self._account is not None:
            self._account.join(self)
        self._loop = loop
        self._refilling: asyncio.Future[None] | None = None
        self._counts = counts
        self._weigh = weigh
        self._weigh_error: Exception | None = None
        self._most_held = policy.most_held

    def wrap(self, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return a wrapper of ``fn`` that applies circuit, budget and limit, and counts the units.

        The wrapper has a keyword argument ``bill``: a dict to which it adds the spent units.
        """
        if self._circuit is not None:
            fn = self._circuit.wrap(_noted(fn))

        async def call(*args: Any, bill: dict[str, float] | None = None) -> Any:
            try:
                estimate = self._weigh(args)
            except Exception as raised:
                self._weigh_error = raised
                raise
            usage = Usage(estimate, self._counted, running_call(_current.get()))
            token, error = None, None
            permit = await self._enter(usage)
            try:
                token, usage.is_over = _current.set(usage), False
                return await fn(*args)
            except Exception as raised:
                error = raised
                raise
            finally:
                usage.is_over = True
                try:
                    self._leave(usage, token, permit, error, bill)
                except BaseException:  # raised by a signal handler, maybe before the release
                    release_again(self._gate, permit)
                    raise
                finally:
                    # The error's traceback refers to this frame: break the cycle of references.
                    error = None

        return call

    def is_of_weigh(self, error: Exception) -> bool:
        """Return whether ``error`` is the latest error of ``weigh``: then no attempt was made."""
        latest, self._weigh_error = self._weigh_error, None
        return error is latest

    async def _enter(self, usage: Usage) -> Any:
        """Wait until an attempt may be made; return its permit, or ``None`` without a limit."""
        gate = self._gate
        if self._circuit is not None:
            self._circuit.check()  # if the circuit is open, fail before waiting for a permit
        if self._account is not None:
            await self._take_from_budget(self._account, self._budget_amounts(usage))
        if gate is None:
            return None
        try:
            weights = usage.weights
            return await gate.acquire(weights) if weights else gate.take() or await gate.acquire()
        except BaseException:
            self._give_back(self._budget_amounts(usage))
            raise

    async def _take_from_budget(self, account: Account, wanted: dict[str, float]) -> None:
        while not account.take(wanted):
            if self._loop is None:
                account.refill()
                continue
            if self._refilling is None:
                self._refilling = self._loop.run_in_executor(None, account.refill)
            refilling = self._refilling
            try:
                # Several calls may await this future: a cancelled call must not cancel the future.
                await asyncio.shield(refilling)
            finally:
                if refilling.done():
                    self._refilling = None

    def _budget_amounts(self, usage: Usage) -> dict[str, float]:
        """Return the amounts that a call takes from the budget before the call starts."""
        estimate = usage.estimate
        return {unit: 1.0 if unit == CALLS else estimate.get(unit, 0.0) for unit in self._units}

    def _give_back(self, taken: dict[str, float]) -> None:
        if self._account is not None:
            self._account.add({unit: -amount for unit, amount in taken.items()})

    def _leave(
        self,
        usage: Usage,
        token: Token[Usage | None] | None,
        permit: Any,
        error: Exception | None,
        bill: dict[str, float] | None,
    ) -> None:
        """After an attempt, replace its estimate by its real cost, and release its permit."""
        if token is not None:
            # ValueError: the garbage collector is ending the call in another context.
            with contextlib.suppress(ValueError):
                _current.reset(token)
        # ``error`` does not show whether the attempt was made: a CircuitOpenError may come from
        # another function that ``fn`` called.
        not_made = self._circuit is not None and not usage.passed_circuit
        refused = not_made or isinstance(error, RetryAfter)
        spent = self._counts.spent
        for unit, amount in usage.spent.items():
            spent[unit] = spent.get(unit, 0.0) + amount
        if bill is not None:
            for unit in bill:
                bill[unit] += usage.cost(unit, refused)
        if self._account is not None:
            taken = self._budget_amounts(usage)
            made = {unit: usage.cost(unit, refused) for unit in self._units}
            made[CALLS] = 0.0 if not_made else 1.0
            self._account.add({unit: made[unit] - amount for unit, amount in taken.items()})
        if self._gate is None or self._pace is None:
            return
        if isinstance(error, RetryAfter):
            self._gate.hold(min(error.seconds, self._most_held))
        if usage.settle(self._gate, self._pace, refused) and usage.reset is not None:
            self._gate.hold(min(usage.reset, self._most_held))
        self._gate.release(permit)


def _noted(fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return a wrapper of ``fn`` that records that the circuit has let the current call through."""

    def call(*args: Any) -> Awaitable[Any]:
        usage = _current.get()
        assert usage is not None  # noqa: S101 - for mypy
        usage.passed_circuit = True
        return fn(*args)

    return call


def meter_of(
    settings: CallSettings,
    loop: asyncio.AbstractEventLoop | None,
    counts: CallCounts,
    gate: PermitGate | TimedGate | None,
    weigh: Weigh | None,
) -> Meter | None:
    """Return the ``Meter`` of a function's calls; ``None`` if its policy needs no meter.

    ``weigh`` estimates the units of a call from its arguments. Default: ``Limit.weigh`` of the key,
    or the sum over a list of keys.
    """
    policy = settings.policy
    if not policy.is_metered:
        return None
    limit = policy.limit
    if limit is None:
        weigh = _no_units
    elif weigh is None:
        weigh = limit.weights if settings.batch is None else partial(_sum_of_weights, limit)
    return Meter(policy, gate, loop, counts, weigh)


def _no_units(args: tuple[Any, ...]) -> dict[str, float]:  # noqa: ARG001
    return {}


def _sum_of_weights(limit: Limit, args: tuple[Any, ...]) -> dict[str, float]:
    """Return the estimated units of a call with a list of keys: the sum of all keys' estimates."""
    weights = dict.fromkeys(limit.units or {}, 0.0)
    for key in args[0]:
        for unit, weight in weights_of_key(limit, key).items():
            weights[unit] += weight
    return weights
