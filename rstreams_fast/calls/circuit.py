"""``Circuit``, which stops calls for a while after too many failures, and its state."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from rstreams_fast.calls.errors import BudgetSpentError, CircuitOpenError, as_timeout
from rstreams_fast.calls.functions import (
    MOST_CALLS,
    check_exceptions,
    check_positive_int,
    check_seconds,
)
from rstreams_fast.calls.latest import LatestUsed
from rstreams_fast.calls.retry import RetryAfter

__all__ = ["Circuit", "CircuitState", "circuit_of"]

SHARE_OF: Final = 100
"""If ``failures`` is a share, it is a share of the last 100 calls."""


@dataclass(frozen=True)
class Circuit:
    """Stops calls for a while after too many failures; then one call tests the service.

    Each worker process has a state of its own. All stages with the same object share this state,
    also those of later tasks. Neither a ``RetryAfter`` nor a ``BudgetSpentError`` counts as a
    failure.

    Args:
        failures: How many attempts in a row may fail (an ``int``), or which share of the last 100
            (a ``float``), before the circuit opens. While the circuit is open, calls fail at once
            with ``CircuitOpenError``, and are not tried again.
        reset: Seconds until one call is let through. If that call succeeds, the circuit closes. If
            the call fails, or does not return within ``reset`` seconds, the circuit stays open for
            ``reset`` more seconds.
        on: The exception types that count as failures of the service; any other exception shows
            that the service answers.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value.
    """

    failures: float = 10
    reset: float = 30.0
    on: tuple[type[Exception], ...] = (Exception,)
    id: str = field(default_factory=lambda: uuid.uuid4().hex, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.failures, float):
            check_positive_int("Circuit(failures)", self.failures, MOST_CALLS)
        elif not 0 < self.failures <= 1:
            raise ValueError(f"Circuit(failures) must be a share up to 1.0, got {self.failures}")
        check_seconds("Circuit(reset)", self.reset)
        object.__setattr__(self, "on", check_exceptions("Circuit(on)", self.on))

    def describe(self) -> str:
        """Return a text for people: when the circuit opens."""
        share = isinstance(self.failures, float)
        what = f"{self.failures:.0%} of 100 attempts" if share else f"{self.failures} in a row"
        return f"circuit: opens for {self.reset:g} s when {what} fail, in each worker"


_states: Final[LatestUsed[CircuitState]] = LatestUsed()


def circuit_of(circuit: Circuit) -> CircuitState:
    """Return the state of ``circuit``, which all stages of the process share."""
    return _states.get(circuit.id, lambda: CircuitState(circuit))


class CircuitState:
    """The state of a circuit: closed, open, or half open, while one call tests the service.

    Thread-safe.
    """

    def __init__(self, circuit: Circuit, clock: Callable[[], float] = time.monotonic) -> None:
        self._circuit = circuit
        self._clock = clock
        # Reentrant: a finalizer may end a call on the thread that holds the lock.
        self._lock = threading.RLock()
        share = isinstance(circuit.failures, float)
        self._failed: deque[bool] = deque(maxlen=SHARE_OF if share else int(circuit.failures))
        self._most_failures = circuit.failures * SHARE_OF if share else circuit.failures
        self._open_until: float | None = None
        self._probes_until: float | None = None
        """While a call tests the service: the time from which another call may test it."""
        self._opened_at: float | None = None
        self._open_seconds = 0.0
        self._era = 0
        """How often the state has changed. Results of calls from before a change are ignored."""

    def check(self) -> None:
        """Raise ``CircuitOpenError`` if no call may be made now."""
        until = self._open_until
        if until is None:
            return
        left = (self._probes_until or until) - self._clock()
        if left > 0:
            raise CircuitOpenError(
                f"the service failed too often: no calls for {left:.3g} s, then one"
            )

    def enter(self) -> int:
        """Begin a call; return a number for ``leave``. ``CircuitOpenError``: make no call now."""
        with self._lock:
            self.check()
            if self._open_until is not None:  # this call tests whether the service works again
                if self._probes_until is not None:
                    # The previous test call did not end in time. The new number makes ``leave``
                    # ignore its result.
                    self._era += 1
                self._probes_until = self._clock() + self._circuit.reset
            return self._era

    def leave(self, era: int, error: BaseException | None) -> None:
        """Record how a call ended.

        A cancelled call says nothing about the service, nor does a call in which another function
        found its budget spent. ``RetryAfter`` means that the service is up, but busy. A test call
        that raises ``RetryAfter`` succeeds; in other calls ``RetryAfter`` is neither a success nor
        a failure.
        """
        throttled = isinstance(error, RetryAfter)
        is_silent = error is not None and (
            not isinstance(error, Exception) or isinstance(error, BudgetSpentError)
        )
        failed = not (throttled or is_silent) and isinstance(error, self._circuit.on)
        with self._lock:
            if era != self._era:
                return
            if self._open_until is not None:  # the call was a test call
                self._probes_until = None
                if failed:
                    self._open()
                elif not is_silent:
                    self._open_seconds, self._opened_at = self.open_seconds(), None
                    self._open_until = None
                    self._era += 1
                return
            if throttled or is_silent:
                return
            self._failed.append(failed)
            full = len(self._failed) == self._failed.maxlen
            if failed and full and sum(self._failed) >= self._most_failures:
                self._open()

    def wrap(self, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return a wrapper of ``fn``: the circuit checks each call, and records how it ends."""

        async def call(*args: Any) -> Any:
            era = self.enter()
            try:
                result = await fn(*args)
            except BaseException as error:
                self.leave(era, as_timeout(error))
                raise
            self.leave(era, None)
            return result

        return call

    def open_seconds(self) -> float:
        """Return for how many seconds in all the circuit has been open or half open."""
        opened_at = self._opened_at
        return self._open_seconds + (0.0 if opened_at is None else self._clock() - opened_at)

    def _open(self) -> None:
        if self._opened_at is None:
            self._opened_at = self._clock()
        self._open_until = self._clock() + self._circuit.reset
        self._era += 1
        self._failed.clear()
