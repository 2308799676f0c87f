"""The state of a ``Circuit`` in a worker process."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from rstreams_fast.spark.limits import RetryAfter
from rstreams_fast.spark.options import Circuit, CircuitOpenError
from rstreams_fast.spark.worker.guards.attempts import as_judged

__all__ = ["CircuitState", "circuit_of"]

SHARE_OF: Final = 100
"""If ``failures`` is a share, it is a share of the last 100 calls."""

_states: Final[dict[str, CircuitState]] = {}


def circuit_of(circuit: Circuit) -> CircuitState:
    """Return the state of ``circuit``, which all stages of the process share."""
    return _states.setdefault(circuit.id, CircuitState(circuit))


class CircuitState:
    """Closed, open, or half open while one call probes. Thread-safe."""

    def __init__(self, circuit: Circuit, clock: Callable[[], float] = time.monotonic) -> None:
        self._circuit = circuit
        self._clock = clock
        self._lock = threading.Lock()
        share = isinstance(circuit.failures, float)
        self._ended: deque[bool] = deque(maxlen=SHARE_OF if share else int(circuit.failures))
        self._most = circuit.failures * SHARE_OF if share else circuit.failures
        self._open_until: float | None = None
        self._probes_until: float | None = None
        """While a call probes: the time from which another call may probe."""
        self._era = 0
        """Counts the changes of state: results of calls from an earlier era are ignored."""

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
        """Begin a call, or raise ``CircuitOpenError``; pass the result to ``leave``."""
        with self._lock:
            self.check()
            if self._open_until is not None:  # this call probes
                if self._probes_until is not None:
                    self._era += 1  # the previous probe did not end in time
                self._probes_until = self._clock() + self._circuit.reset
            return self._era

    def leave(self, era: int, error: BaseException | None) -> None:
        """Record how a call ended. A cancelled call says nothing of the service.

        ``RetryAfter`` means that the service is up, but busy: it ends a probe with success, and
        otherwise counts neither as a success nor as a failure.
        """
        throttled = isinstance(error, RetryAfter)
        failed = not throttled and isinstance(error, self._circuit.on)
        with self._lock:
            if era != self._era:
                return
            if self._open_until is not None:  # the call was the probe
                self._probes_until = None
                if failed:
                    self._open()
                elif error is None or isinstance(error, Exception):
                    self._open_until = None
                    self._era += 1
                return
            if throttled or (error is not None and not isinstance(error, Exception)):
                return
            self._ended.append(failed)
            full = len(self._ended) == self._ended.maxlen
            if failed and full and sum(self._ended) >= self._most:
                self._open()

    def around(self, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return ``fn``, guarded by the circuit."""

        async def call(*args: Any) -> Any:
            era = self.enter()
            try:
                result = await fn(*args)
            except BaseException as error:
                self.leave(era, as_judged(error))
                raise
            self.leave(era, None)
            return result

        return call

    def _open(self) -> None:
        self._open_until = self._clock() + self._circuit.reset
        self._era += 1
        self._ended.clear()
