"""What a call spends: estimated before it, and settled by what its function says."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from rstreams_fast.calls.circuit import CircuitState, circuit_of
from rstreams_fast.calls.counts import CallCounts
from rstreams_fast.calls.limits.blocking import TimedGate
from rstreams_fast.calls.limits.limit import Limit, check_amount
from rstreams_fast.calls.limits.pace import Pace
from rstreams_fast.calls.limits.permits import PermitGate
from rstreams_fast.calls.retry import RetryAfter
from rstreams_fast.calls.words import CallSettings

__all__ = ["Meter", "Usage", "Weigh", "meter_of", "observed", "spent"]

_LEFT: Final = "_left"


Weigh = Callable[[tuple[Any, ...]], dict[str, float]]
"""Returns the estimate of each unit of a call, by its arguments."""


class Usage:
    """What one attempt of a call spends. Its function's thread writes it, the loop's reads it."""

    __slots__ = ("estimate", "left", "reset", "spent")

    def __init__(self, estimate: dict[str, float]) -> None:
        self.estimate = estimate
        self.spent: dict[str, float] = {}
        self.left: dict[str, float] = {}
        self.reset: float | None = None

    @property
    def weights(self) -> tuple[float, ...]:
        """The estimate of each unit of the limit, in the order of their names."""
        return tuple(self.estimate.values())

    def settle(self, gate: PermitGate | TimedGate, pace: Pace, refused: bool) -> None:
        """Give the difference to the estimate back or take it; ``refused``: it has cost nothing."""
        change = []
        for unit, estimate in self.estimate.items():
            amount = self.spent.get(unit, 0.0 if refused else estimate)
            change.append(amount - estimate)
        gate.spend(tuple(change))
        if self.left:
            left = tuple(self.left.get(unit, math.inf) for unit in self.estimate)
            gate.see(left, self.weights)
            if self.reset and any(map(float.__lt__, left, pace.margins(self.weights))):
                gate.hold(self.reset)


_current: Final[ContextVar[Usage | None]] = ContextVar("current_usage", default=None)


def spent(**units: float) -> None:
    """Say what the present call has spent, as the service tells it: ``spent(tokens=812)``.

    For a function whose ``Policy`` has a limit with units; elsewhere it does nothing. The amounts
    of several calls of ``spent`` in one attempt add up. At the end of the attempt the sum replaces
    the estimate of ``Limit(weigh=...)``. It may be called on any thread that runs the function.

    Args:
        **units: The amount of each unit, a finite number >= 0.

    Raises:
        TypeError: An amount is no number.
        ValueError: An amount is negative or not finite.
    """
    usage = _current.get()
    for unit, amount in units.items():
        found = check_amount(f"spent({unit})", amount)
        if usage is not None:
            usage.spent[unit] = usage.spent.get(unit, 0.0) + found


def observed(*, reset: float | None = None, **left: float) -> None:
    """Say what the service says is left: ``observed(tokens_left=1200)``, from its headers.

    For a function whose ``Policy`` has a limit with units; elsewhere it does nothing. The limit
    follows the service: others may use the quota, too. Calls wait where too little is left for
    another one. It may be called on any thread that runs the function.

    Args:
        reset: Seconds until the service begins to count anew, if it counts within windows of time:
            no call starts before that, where too little is left. Leave it out for a service that
            gives the quota back all the time.
        **left: What is left of a unit, by the unit's name and ``_left``.

    Raises:
        TypeError: An amount is no number, or a name does not end in ``_left``.
        ValueError: An amount is negative or not finite.
    """
    usage = _current.get()
    after = None if reset is None else check_amount("observed(reset)", reset)
    for word, amount in left.items():
        if not word.endswith(_LEFT):
            raise TypeError(f"observed({word}): a unit's name and '_left' are meant")
        found = check_amount(f"observed({word})", amount)
        if usage is not None:
            usage.left[word.removesuffix(_LEFT)] = found
    if usage is not None:
        usage.reset = after


class Meter:
    """Weighs the calls of a function, waits for their permits, and settles what they spent."""

    def __init__(
        self,
        gate: PermitGate | TimedGate,
        pace: Pace,
        circuit: CircuitState | None,
        counts: CallCounts,
        *,
        weigh: Weigh,
        most_held: float,
    ) -> None:
        """``most_held``: the most seconds for which a ``RetryAfter`` holds the limit back."""
        self._gate = gate
        self._pace = pace
        self._circuit = circuit
        self._counts = counts
        self._weigh = weigh
        self._most_held = most_held

    def around(self, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return ``fn`` with this meter on each call."""
        gate, pace, circuit, weigh = self._gate, self._pace, self._circuit, self._weigh
        most_held = self._most_held

        async def call(*args: Any) -> Any:
            usage = Usage(weigh(args))
            if circuit is not None:
                circuit.check()  # an open circuit fails now, without waiting for a permit
            permit: Any = await gate.acquire(usage.weights)
            token = _current.set(usage)
            refused = False
            try:
                return await fn(*args)
            except RetryAfter as error:
                refused = True
                gate.hold(min(error.seconds, most_held))
                raise
            finally:
                with contextlib.suppress(ValueError):  # the garbage collector ends it elsewhere
                    _current.reset(token)
                self._count(usage)
                usage.settle(gate, pace, refused)
                gate.release(permit)

        return call

    def _count(self, usage: Usage) -> None:
        spent = self._counts.spent
        for unit, amount in usage.spent.items():
            spent[unit] = spent.get(unit, 0.0) + amount


def meter_of(
    settings: CallSettings,
    counts: CallCounts,
    gate: PermitGate | TimedGate | None,
    weigh: Weigh | None,
) -> Meter | None:
    """Return the meter of a function's calls, if its policy counts what they spend.

    ``weigh`` estimates a call by its arguments. Default: these are keys, or a list of keys.
    """
    policy = settings.policy
    if gate is None or policy.limit is None or not policy.is_metered:
        return None
    if weigh is None:
        limit = policy.limit
        weigh = limit.weights if settings.batch is None else partial(_sum_of_weights, limit)
    circuit = None if policy.circuit is None else circuit_of(policy.circuit)
    pace, most = Pace(policy.limit.numbers), policy.most_held
    return Meter(gate, pace, circuit, counts, weigh=weigh, most_held=most)


def _sum_of_weights(limit: Limit, args: tuple[Any, ...]) -> dict[str, float]:
    """Return the estimate of a call with a list of keys."""
    weights = dict.fromkeys(limit.units or {}, 0.0)
    for key in args[0]:
        for unit, weight in limit.weights(key if type(key) is tuple else (key,)).items():
            weights[unit] += weight
    return weights
