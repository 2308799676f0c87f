"""``Circuit``: a circuit breaker, which makes no calls for a while after too many failures."""

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
"""If ``Circuit(failures)`` is a fraction, it is a fraction of this number of latest attempts."""


@dataclass(frozen=True)
class Circuit:
    """A circuit breaker: stops calls for a while after too many failures.

    Then one call tests whether the service works again. Each worker process has its own state of
    the circuit. All stages (such as ``rs.lookup``) of the process with the same ``Circuit`` object
    share the state, including stages of later tasks. Neither a ``RetryAfter`` nor a
    ``BudgetSpentError`` counts as a failure.

    Args:
        failures: The circuit opens after this number of failed attempts in a row (an ``int``), or
            when this fraction of the last 100 attempts has failed (a ``float``). While the circuit
            is open, calls fail immediately with ``CircuitOpenError``, and are not retried.
        reset: Seconds until an open circuit lets one test call through. If the test call succeeds,
            the circuit closes. If the test call fails, or does not return within ``reset`` seconds,
            the circuit stays open for ``reset`` more seconds.
        on: The exception types that count as failures of the service. Any other exception shows
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
        """Return a readable text: after how many failures the circuit opens, and for how long."""
        share = isinstance(self.failures, float)
        what = f"{self.failures:.0%} of 100 attempts" if share else f"{self.failures} in a row"
        return f"circuit: opens for {self.reset:g} s when {what} fail, in each worker"


_states: Final[LatestUsed[CircuitState]] = LatestUsed()


def circuit_of(circuit: Circuit) -> CircuitState:
    """Return the state that all users of ``circuit`` in this process share."""
    return _states.get(circuit.id, lambda: CircuitState(circuit))


class CircuitState:
    """The state of a circuit breaker: closed, open or half-open. Thread-safe.

    In the half-open state one call tests the service, and no other call is made.
    """

    def __init__(self, circuit: Circuit, clock: Callable[[], float] = time.monotonic) -> None:
        self._circuit = circuit
        self._clock = clock
        # Reentrant: a finalizer may interrupt the thread that holds the lock, and take it again.
        self._lock = threading.RLock()
        share = isinstance(circuit.failures, float)
        self._failed: deque[bool] = deque(maxlen=SHARE_OF if share else int(circuit.failures))
        self._most_failures = circuit.failures * SHARE_OF if share else circuit.failures
        self._open_until: float | None = None
        self._probes_until: float | None = None
        """While a test call is running: until this time no second test call may start."""
        self._opened_at: float | None = None
        self._open_seconds = 0.0
        self._era = 0
        """The number of state changes so far. ``leave`` ignores calls that began in another era."""

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
        """Begin a call; return the present era, which the caller passes to ``leave``.

        Raises ``CircuitOpenError`` if no call may be made now.
        """
        with self._lock:
            self.check()
            if self._open_until is not None:  # the circuit is open: this call is its test call
                if self._probes_until is not None:
                    # The previous test call has not ended in time. Begin a new era, so that
                    # ``leave`` ignores the result of the previous test call.
                    self._era += 1
                self._probes_until = self._clock() + self._circuit.reset
            return self._era

    def leave(self, era: int, error: BaseException | None) -> None:
        """Record how a call ended. ``era`` is the return value of ``enter``.

        A cancelled call is ignored, because it says nothing about the service. A
        ``BudgetSpentError`` is ignored, too: it comes from another function called in this call.
        ``RetryAfter`` means that the service works, but is busy. So a test call that raises
        ``RetryAfter`` closes the circuit. In other calls ``RetryAfter`` is ignored.
        """
        throttled = isinstance(error, RetryAfter)
        is_silent = error is not None and (
            not isinstance(error, Exception) or isinstance(error, BudgetSpentError)
        )
        failed = not (throttled or is_silent) and isinstance(error, self._circuit.on)
        with self._lock:
            if era != self._era:
                return
            if self._open_until is not None:  # the ended call is the test call
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
        """Return a wrapper of ``fn`` that calls ``enter`` before, and ``leave`` after each call."""

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
        """Return the total seconds for which the circuit has been open or half-open."""
        opened_at = self._opened_at
        return self._open_seconds + (0.0 if opened_at is None else self._clock() - opened_at)

    def _open(self) -> None:
        if self._opened_at is None:
            self._opened_at = self._clock()
        self._open_until = self._clock() + self._circuit.reset
        self._era += 1
        self._failed.clear()
