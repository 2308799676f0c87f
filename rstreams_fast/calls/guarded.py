"""Wraps a function in the time-outs, retries, circuit and limit of its policy.

A gate gives the permits of a limit to calls: a call starts when it has a permit. A ``Meter`` counts
the units (such as tokens) that calls spend. A ``CallWindow`` makes a call for each item submitted
to it; the calls overlap.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any, Final

from rstreams_fast.calls.adaptive import AdaptiveGate
from rstreams_fast.calls.attempts import CallAttempts, RetryRules, longest_retry_after
from rstreams_fast.calls.circuit import CircuitState, circuit_of
from rstreams_fast.calls.counts import CallCounts
from rstreams_fast.calls.deadlines import Deadlines, cancellations
from rstreams_fast.calls.errors import StageError
from rstreams_fast.calls.limits.blocking import TimedGate, release_again
from rstreams_fast.calls.limits.permits import PermitGate
from rstreams_fast.calls.outcome import Outcome
from rstreams_fast.calls.retry import RetryAfter
from rstreams_fast.calls.settings import CallSettings
from rstreams_fast.calls.traces import Tracer
from rstreams_fast.calls.usage import Meter, Weigh, meter_of

__all__ = [
    "DEADLINE_SCOPE",
    "Recovery",
    "counted",
    "guarded",
    "with_arguments",
    "with_limit_hold",
    "with_retry_after",
]

DEADLINE_SCOPE: Final = ", all attempts and waits together"

LONGEST_SLEEP: Final = 1e9
"""``time.sleep`` raises ``OverflowError`` for much more than this many seconds (30 years)."""


def with_arguments(
    argument_of: Callable[[Any], Any], fn: Callable[..., Awaitable[Any]]
) -> Callable[..., Awaitable[Any]]:
    """Return a wrapper that applies ``argument_of`` to each argument, and then calls ``fn``."""
    return lambda *keys: fn(*map(argument_of, keys))


def counted(fn: Callable[..., Awaitable[Any]], counts: CallCounts) -> Callable[..., Awaitable[Any]]:
    """Return a wrapper of ``fn`` that adds 1 to ``counts.calls`` at each call."""

    def call(*args: Any) -> Awaitable[Any]:
        counts.calls += 1
        return fn(*args)

    return call


class Recovery:
    """Repeats calls that raise ``RetryAfter``, for the ``CallWindow`` that makes the calls.

    Only the event loop's thread may use the object.
    """

    def __init__(
        self,
        fn: Callable[..., Awaitable[Any]],
        spread: bool,
        settings: CallSettings,
        counts: CallCounts,
        gate: PermitGate | None,
        *,
        times: bool,
    ) -> None:
        """``times``: whether this object times the further attempts, because ``fn`` does not."""
        self._fn = fn
        self._times_attempts = times
        self._spread = spread
        self._rules = RetryRules(settings.policy, settings.label, counts)
        self._gate = gate
        self._last: Exception | None = None
        """The error of a traced call after its last attempt: ``recover`` must not repeat it."""

    def recover(self, item: Any, error: Exception) -> Coroutine[Any, Any, Any] | None:
        """Return a coroutine that repeats the call of ``item``; ``None`` if the call has failed.

        This method is the argument ``recover`` of the ``CallWindow``.
        """
        last, self._last = self._last, None
        if not isinstance(error, RetryAfter) or error is last:
            return None
        return self._repeat(item if self._spread else (item,), error)

    def _repeat(self, args: tuple[Any, ...], error: RetryAfter) -> Coroutine[Any, Any, Any]:
        attempts = CallAttempts(self._rules, 0)  # 0: no cancellation was pending before the call
        return _repeat(self._next_attempt, args, error, attempts, self._gate)

    def _next_attempt(self, *args: Any) -> Awaitable[Any]:
        counts = self._rules.counts
        counts.repeated_by_window += 1
        attempt = self._fn(*args)
        return counts.timing(attempt, attempts=1) if self._times_attempts else attempt

    def traced(self, tracer: Tracer) -> Callable[..., Awaitable[Any]]:
        """Return a wrapper of ``fn`` that traces each call, including its further attempts.

        The wrapper has an additional first argument, ``timing``: a function that wraps the first
        attempt, to measure the latency of the attempt.
        """

        async def call(timing: Callable[[Any], Awaitable[Any]], *args: Any) -> Any:
            try:
                with tracer.begin():
                    try:
                        return await timing(self._fn(*args))
                    except RetryAfter as raised:
                        error = raised
                    return await self._repeat(args, error)
            except RetryAfter as raised:
                self._last = raised
                raise

        return call


def with_retry_after(
    fn: Callable[..., Awaitable[Any]],
    settings: CallSettings,
    counts: CallCounts,
    gate: PermitGate | None = None,
) -> Callable[..., Awaitable[Any]]:
    """Return a wrapper of ``fn`` that repeats a call after each ``RetryAfter``.

    If there is a ``gate``, the caller of the wrapper already has a permit of the gate's limit.
    """
    rules = RetryRules(settings.policy, settings.label, counts)
    fn = counts.attempted(fn)

    async def call(*args: Any) -> Any:
        cancelled = cancellations()
        try:
            return await fn(*args)
        except RetryAfter as raised:
            error = raised
        return await _repeat(fn, args, error, CallAttempts(rules, cancelled), gate)

    return call


async def _repeat(
    fn: Callable[..., Awaitable[Any]],
    args: tuple[Any, ...],
    error: RetryAfter,
    attempts: CallAttempts,
    gate: PermitGate | None,
) -> Any:
    """Wait for the seconds in ``error``, then call ``fn`` again, until it raises no ``RetryAfter``.

    If there is a ``gate``, the call has a permit of the gate's limit, and returns the permit during
    each wait. Raises ``error`` if no further attempt is allowed.
    """
    rules = attempts.rules
    while True:
        pause = attempts.pause_after(error)
        if pause is None:
            attempts.explain(error)
            raise error
        with rules.counts.service_waits:
            await (
                asyncio.sleep(pause)
                if gate is None
                else gate.hold_and_wait(min(error.seconds, rules.most_held), pause)
            )
        try:
            return await fn(*args)
        except RetryAfter as raised:
            error = raised


def guarded(
    fn: Callable[..., Awaitable[Any]],
    settings: CallSettings,
    loop: asyncio.AbstractEventLoop | None,
    counts: CallCounts,
    gate: PermitGate | TimedGate | None,
    *,
    weigh: Weigh | None = None,
) -> Callable[..., Awaitable[Any]]:
    """Return a wrapper of ``fn`` with the time-outs, retries, circuit and limit of ``settings``.

    Without a ``loop`` the calls never suspend: they block their thread, and have no time-outs.
    ``weigh`` estimates the units of a call from its arguments. Default: ``Limit.weigh`` of the key,
    or the sum over a list of keys. With ``settings.as_outcomes`` the wrapper returns an
    ``Outcome``, even if the call fails. If the policy counts units, the ``Outcome`` has the units
    of all attempts.
    """
    sleep = _block if loop is None else asyncio.sleep
    if gate is None and loop is not None and not settings.is_guarded:
        return with_retry_after(fn, settings, counts)
    adaptive = _adaptive_gate(settings, loop, counts)
    as_outcomes, deadlines = settings.as_outcomes, _deadlines(loop, settings.policy.timeout, counts)
    circuit = None if settings.policy.circuit is None else circuit_of(settings.policy.circuit)
    counts.count_open(circuit)
    rules = RetryRules(settings.policy, settings.label, counts)
    meter = meter_of(settings, loop, counts, gate, weigh)
    budget, most_held = rules.budget, rules.most_held
    counts_here = circuit is None and meter is None
    # If there is a meter, do not apply the circuit here: ``meter.wrap`` applies it.
    observed = (adaptive, circuit if meter is None else None, meter)
    if observers := [each for each in observed if each is not None]:
        fn = fn if counts_here else counts.attempted(fn)
        fn, deadlines = _observed(fn, deadlines, observers), None
    # If there is a meter, it waits for the permits of its calls: do not wait for permits here.
    gate = gate if meter is None else None
    units = settings.policy.units if as_outcomes else ()

    async def call(*args: Any, progress: _Progress | None = None) -> Any:
        attempts: CallAttempts | None = None
        cancelled = None if loop is None else cancellations()
        begin = monotonic() if as_outcomes else 0.0
        usage = dict.fromkeys(units, 0.0) if units else None
        if progress is not None:
            progress.usage = usage
        if budget is not None:
            budget.earn(1)
        while True:
            permit: Any = None
            if adaptive is not None:
                await adaptive.acquire()
            try:
                if gate is not None:
                    if circuit is not None:
                        # If the circuit is open, fail now instead of after a wait for a permit.
                        circuit.check()
                    permit = gate.take() or await gate.acquire()
                # With units, ``fn`` is the meter's wrapper, which adds the spent units to ``bill``.
                awaitable = fn(*args) if usage is None else fn(*args, bill=usage)
                if counts_here:
                    made = counts.attempts = counts.attempts + 1
                    awaitable = counts.timed(awaitable) if made >= counts.timed_at else awaitable
                result = await (awaitable if deadlines is None else deadlines.wait(awaitable))
                if as_outcomes:
                    made = 1 if attempts is None else attempts.count
                    result = Outcome(result, None, made, monotonic() - begin, usage)
                return result  # noqa: TRY300
            except Exception as error:
                _hold(gate, error, most_held)
                waits = counts.waits_after(error)
                attempts = attempts or CallAttempts(rules, cancelled)
                if progress is not None:
                    progress.error = error
                # If ``weigh`` raised the error, another attempt would fail in the same way.
                hopeless = meter is not None and meter.is_of_weigh(error)
                pause = None if hopeless else attempts.pause_after(error)
                if pause is None:
                    if as_outcomes and not isinstance(error, StageError):
                        return Outcome(None, error, attempts.count, monotonic() - begin, usage)
                    attempts.explain(error)
                    raise
            finally:
                if gate is not None and permit is not None:
                    try:
                        gate.release(permit)
                    except BaseException:  # raised by a signal handler, maybe before the release
                        release_again(gate, permit)
                        raise
                if adaptive is not None:
                    adaptive.leave()
            with waits:
                await sleep(pause)
            if progress is not None:
                progress.attempt = attempts.count

    deadline = _deadlines(loop, settings.policy.deadline, counts, DEADLINE_SCOPE)
    return call if deadline is None else _with_deadline(call, deadline, as_outcomes)


def _adaptive_gate(
    settings: CallSettings, loop: asyncio.AbstractEventLoop | None, counts: CallCounts
) -> AdaptiveGate | None:
    return None if loop is None or not settings.auto else AdaptiveGate(settings, loop, counts)


def _deadlines(
    loop: asyncio.AbstractEventLoop | None,
    seconds: float | None,
    counts: CallCounts,
    suffix: str = "",
) -> Deadlines | None:
    return None if loop is None or seconds is None else Deadlines(loop, seconds, counts, suffix)


async def _block(seconds: float) -> None:
    time.sleep(min(seconds, LONGEST_SLEEP))  # noqa: ASYNC251 - on a thread without a loop


def _hold(gate: PermitGate | TimedGate | None, error: Exception, most: float) -> None:
    """After a ``RetryAfter``, stop all calls under the limit, for at most ``most`` seconds."""
    if gate is not None and isinstance(error, RetryAfter):
        gate.hold(min(error.seconds, most))


def _observed(
    fn: Callable[..., Awaitable[Any]],
    deadlines: Deadlines | None,
    observers: list[AdaptiveGate | CircuitState | Meter],
) -> Callable[..., Awaitable[Any]]:
    """Wrap ``fn`` in time-outs, and then in ``observers``, which must see each ``TimeoutError``."""
    if deadlines is not None:
        fn = deadlines.wrap(fn)
    for observer in observers:
        fn = observer.wrap(fn)
    return fn


def with_limit_hold(
    fn: Callable[..., Awaitable[Any]], gate: PermitGate, most: float
) -> Callable[..., Awaitable[Any]]:
    """Return a wrapper of ``fn`` that stops all calls under the limit after a ``RetryAfter``.

    ``fn`` gets a list of keys. If it returns a ``RetryAfter`` for a key, all calls under the limit
    stop for the seconds of the ``RetryAfter``, but at most for ``most`` seconds.
    """

    async def call(*args: Any) -> Any:
        result = await fn(*args)
        if (throttled := longest_retry_after(result)) is not None:
            gate.hold(min(throttled.seconds, most))
        return result

    return call


def _with_deadline(
    call: Callable[..., Awaitable[Any]],
    deadline: Deadlines,
    as_outcomes: bool,
) -> Callable[..., Awaitable[Any]]:
    async def in_time(*args: Any) -> Any:
        progress, begin = _Progress(), monotonic()
        try:
            return await deadline.wait(call(*args, progress=progress))
        except TimeoutError as error:
            # Without ``as_outcomes``, ``call`` may have raised the time-out of its last attempt:
            # this error is ``progress.error``. Any other TimeoutError comes from the deadline.
            if error is not progress.error:
                error.__cause__ = progress.error
            if as_outcomes:
                seconds = monotonic() - begin
                return Outcome(None, error, progress.attempt, seconds, progress.usage)
            raise
        finally:
            # The error's traceback refers to this frame: break the cycle of references.
            progress.error = None

    return in_time


class _Progress:
    attempt = 1
    error: Exception | None = None
    """The error of the latest failed attempt."""
    usage: dict[str, float] | None = None
