"""What one check works with: its history, its waiting, its threads, its clean-up."""

from __future__ import annotations

import _thread
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from rstreams_fast.tck.history import History
from rstreams_fast.tck.loop import LoopThread
from rstreams_fast.tck.outcome import CheckLeft, RuleBroken

__all__ = ["Environment", "frequent_switches"]

#: While threads race, the interpreter is made to switch between them often (seconds).
_SWITCH_INTERVAL = 1e-5
#: How long a thread is held that signals to a check that was left (seconds).
_PAUSE_OF_THE_LEFT = 0.05


class Environment:
    """What a check and its probes share.

    A probe may find a rule broken in any thread. It then *flags* that, and the next expectation of
    the check raises it. The kit waits for events, with ``timeout`` as the deadline; only silence
    takes time, ``silence`` seconds of it.
    """

    def __init__(self, *, timeout: float, silence: float, on_loop: bool, rule: str = "") -> None:
        self.rule = rule  #: the rule of the check
        self.timeout = timeout
        self.silence = silence
        self.history = History()
        self.changed = threading.Condition()
        self.over = threading.Event()  #: the check has ended, or was left
        self.left = False  #: the check was left: signals may still come, and nobody waits for them
        self._loop = LoopThread() if on_loop else None
        self._flagged: list[RuleBroken] = []
        self._subscribers: list[weakref.ref[Any]] = []
        self._names: dict[str, int] = {}

    # -- violations --------------------------------------------------------------------------------

    def flag(self, rule: str, expected: str, came: str) -> None:
        """Note that a rule is broken. Any thread."""
        with self.changed:
            self._flagged.append(RuleBroken(rule, expected, came))
            self.changed.notify_all()

    def leave(self, rule: str, expected: str, came: str) -> None:
        """Note that a rule is broken, and give the check up: its thread may never return."""
        with self.changed:
            self.flag(rule, expected, came)
            self.left = True
            self.over.set()

    def stop_the_caller(self) -> NoReturn:
        """End a thread that signals to a check that was left; slow it down if it goes on."""
        time.sleep(_PAUSE_OF_THE_LEFT)
        raise CheckLeft

    def notify(self) -> None:
        """Let every waiting expectation look again. Any thread."""
        with self.changed:
            self.changed.notify_all()

    def verify(self) -> None:
        """Raise the first violation that was flagged."""
        flagged = self.first_flagged()
        if flagged is not None:
            raise flagged

    def first_flagged(self) -> RuleBroken | None:
        with self.changed:
            return self._flagged[0] if self._flagged else None

    # -- waiting -----------------------------------------------------------------------------------

    def wait(
        self,
        condition: Callable[[], object],
        rule: str,
        expected: str,
        came: Callable[[], str],
        *,
        timeout: float | None = None,
    ) -> None:
        """Wait until ``condition``, looked at after each signal; else ``rule`` is broken."""
        timeout = self.timeout if timeout is None else timeout
        if not self._happens(condition, timeout):
            raise RuleBroken(rule, expected, f"{came()} within {timeout:g} s")

    def is_quiet(self, noise: Callable[[], object]) -> bool:
        """Whether ``noise`` stays false for one silence window. Flagged violations are raised."""
        return not self._happens(noise, self.silence)

    def expect_quiet(
        self, noise: Callable[[], object], rule: str, expected: str, came: Callable[[], str]
    ) -> None:
        if not self.is_quiet(noise):
            raise RuleBroken(rule, expected, came())

    def _happens(self, event: Callable[[], object], seconds: float) -> bool:
        end = time.monotonic() + seconds
        with self.changed:
            while True:
                self.verify()
                if event():
                    return True
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self.changed.wait(left)

    def pause(self, condition: Callable[[], object], seconds: float) -> bool:
        """Wait until ``condition``, at most so long, from within a signal: nothing is raised."""
        with self.changed:
            return bool(self.changed.wait_for(condition, seconds))

    # -- calling the implementation ----------------------------------------------------------------

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the implementation: here, or on the loop it is bound to."""
        if self._loop is None or self._loop.is_current():
            return function(*args)
        return self._loop.call(function, *args, timeout=self.timeout)

    def name(self, kind: str) -> str:
        """``kind`` for the first of a kind, ``kind-2`` for the second."""
        number = self._names[kind] = self._names.get(kind, 0) + 1
        return kind if number == 1 else f"{kind}-{number}"

    # -- threads -----------------------------------------------------------------------------------

    def start(self, call: Callable[[], object], rule: str) -> threading.Event:
        """Run ``call`` in a free-running thread, one that ``threading`` did not make.

        The event is set when it has ended. That it raises breaks ``rule``.
        """
        ended = threading.Event()

        def main() -> None:
            try:
                call()
            except Exception as raised:
                self.flag(rule, "calls from any thread return normally", f"one raised {raised!r}")
            finally:
                ended.set()
                self.notify()

        _thread.start_new_thread(main, ())
        return ended

    def run_together(self, *calls: Callable[[], object], rule: str) -> None:
        """Run every call in a thread of its own, all at once, and wait for all."""
        ready = threading.Barrier(len(calls))

        def together(call: Callable[[], object]) -> Callable[[], object]:
            def run() -> object:
                ready.wait(self.timeout)
                return call()

            return run

        with frequent_switches():
            ended = [self.start(together(call), rule) for call in calls]
            self.wait(
                lambda: all(event.is_set() for event in ended),
                rule,
                f"{len(calls)} calls from as many threads return",
                lambda: f"{sum(not event.is_set() for event in ended)} have not returned",
            )

    # -- clean-up ----------------------------------------------------------------------------------

    def keep_track(self, subscriber: Any) -> None:
        """Cancel this subscriber's subscription at the end of the check, if it still exists."""
        self._subscribers.append(weakref.ref(subscriber))

    def release(self) -> None:
        for reference in self._subscribers:
            subscriber = reference()
            if subscriber is not None:
                subscriber.leave()
        if self._loop is not None:
            self._loop.close(self.timeout)


@contextmanager
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
