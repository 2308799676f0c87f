"""Provokes races: in each round, a second thread makes a call at another chosen moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rstreams_fast.tck.environment import Environment, frequent_switches

__all__ = ["SecondThread", "pause", "poll_until", "stay_busy", "sweep"]

#: A sweep (all rounds of a check) ends after ``_MOST_ROUNDS`` rounds. It ends earlier in two cases:
#: after a sixth of the timeout, or if ``_LEAST_ROUNDS`` rounds took more than ``silence`` seconds.
_MOST_ROUNDS, _LEAST_ROUNDS = 300, 24
#: The golden ratio minus 1. For any n, its first n multiples, modulo 1, are spread evenly between 0
#: and 1.
_GOLDEN: Final = 0.6180339887498949
#: A pause ends with a busy wait of this many seconds, because the system may wake a thread late.
_SHORTEST_SLEEP = 0.0003
#: A waiting thread checks its condition without a break for this many seconds. After that, the
#: thread sleeps between two checks.
_SPIN_SECONDS = 0.002


def sweep(environment: Environment, *, most: int = _MOST_ROUNDS) -> Iterator[float]:
    """Yield one number for each round, spread evenly from 0 to 1. Slow rounds mean fewer rounds."""
    start = time.perf_counter()
    for number in range(most):
        seconds = time.perf_counter() - start
        if seconds > (environment.silence if number >= _LEAST_ROUNDS else environment.timeout / 6):
            return
        yield number * _GOLDEN % 1


def pause(seconds: float) -> None:
    """Wait ``seconds``, exact to some microseconds, and let other threads run meanwhile."""
    end = time.perf_counter() + seconds
    if seconds > _SHORTEST_SLEEP:
        time.sleep(seconds - _SHORTEST_SLEEP)
    while time.perf_counter() < end:
        time.sleep(0)


def stay_busy(seconds: float) -> None:
    """Keep this thread busy for ``seconds``, without a sleep."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def poll_until(condition: Callable[[], object], seconds: float = _SPIN_SECONDS) -> bool:
    """Wait until ``condition()`` is true. Return ``False`` if it is still false after ``seconds``.

    In the first 2 ms the condition is checked without a break, and later every 0.2 ms.
    """
    start = time.perf_counter()
    while not condition():
        waited = time.perf_counter() - start
        if waited > seconds:
            return False
        time.sleep(0 if waited < _SPIN_SECONDS else _SPIN_SECONDS / 10)
    return True


class SecondThread:
    """A thread that makes one call in each round, a given time after ``fire``.

    The thread is already awake when ``fire`` is called, so the moment of the call is exact.
    """

    def __init__(self, environment: Environment, rule: str) -> None:
        self._environment = environment
        self._rule = rule
        self._round: tuple[Callable[[], object], float] | None = None
        self._begins = threading.Lock()  # released to begin a round
        self._begins.acquire()
        self._firing = threading.Lock()
        self._ready = self._calling = self._returned = False
        # The number of the current round, and the number of the round that was fired last.
        self._number = self._fired = 0
        self._ended = environment.start(self._main, rule)

    @classmethod
    @contextmanager
    def running(cls, environment: Environment, rule: str) -> Iterator[SecondThread]:
        """A context manager that runs a second thread. If its calls raise, ``rule`` is broken."""
        second = cls(environment, rule)
        try:
            with frequent_switches():
                yield second
        finally:
            second._round = None
            second._begin()
        environment.wait(second._ended.is_set, rule, "the calls return", lambda: "one has not")

    def arm(self, call: Callable[[], object], after: float) -> int:
        """Begin a round: the thread makes ``call``, ``after`` seconds after ``fire``.

        Return the number of the round.
        """
        self._ready = self._calling = self._returned = False
        self._number += 1
        self._round = call, after
        self._begin()
        self._wait(lambda: self._ready, "the second thread of the kit runs")
        return self._number

    def _begin(self) -> None:
        # If the lock is free, release() would raise. It is free if the second thread has not begun
        # the previous round, or has ended.
        if self._begins.locked():
            self._begins.release()

    def fire(self, number: int) -> None:
        """Let the second thread make the call of round ``number``, after the time set by ``arm``.

        A late ``on_next`` may call this when the round is already over. Then nothing happens.
        """
        with self._firing:
            self._fired = max(self._fired, number)

    @property
    def is_armed(self) -> bool:
        """Whether ``fire`` was not called yet for the current round."""
        return self._fired != self._number

    def wait_briefly(self, number: int) -> None:
        """Wait until the call of round ``number`` has returned, for a limited time.

        The time is limited, because the call itself may wait for the thread that waits here.
        """
        environment = self._environment
        poll_until(lambda: self._calling or number != self._number, environment.timeout / 6)
        poll_until(lambda: self._returned or number != self._number, environment.silence / 10)

    def wait_until_fired(self) -> None:
        """Wait until another thread has called ``fire`` for this round."""
        self._wait(lambda: not self.is_armed, "the on_next of this round runs")

    def join(self, expected: str) -> None:
        """Call ``fire`` for this round, and wait until the call of the round has returned."""
        self.fire(self._number)
        self._wait(lambda: self._returned, expected)

    def _wait(self, condition: Callable[[], bool], expected: str) -> None:
        if not poll_until(condition):
            self._environment.wait(condition, self._rule, expected, lambda: "it has not")

    def _is_fired(self) -> bool:
        return not self.is_armed or self._environment.ended.is_set()

    def _main(self) -> None:
        while self._begins.acquire() and (begun := self._round) is not None:
            call, after = begun
            self._ready = True
            self._environment.notify()
            poll_until(self._is_fired, 4 * self._environment.timeout)
            pause(after)
            self._calling = True
            try:
                call()
            finally:
                self._returned = True
                self._environment.notify()
