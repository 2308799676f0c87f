"""Runs one scenario after the other; says what went wrong in which, and how to see it again."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import sys
import threading
import time
import traceback
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import rstreams_fast
from rstreams_fast.errors import on_dropped_error
from tests.helpers import DEADLINE
from tests.soak.leftovers import Before, Memory
from tests.soak.place import Chance, Place
from tests.soak.scenarios import Scenario

#: Seconds that one scenario may take: all take less than one, on a machine that is not busy.
LIMIT = 120.0
#: Rounds of all scenarios before objects and memory are counted: until modules are loaded, and
#: what is made once has been made.
WARM_UP = 2


class SoakFailed(AssertionError):
    """What went wrong, with the scenario and the chance that lead to it."""


class Watchdog:
    """Ends the process, with everybody's stack, when a scenario does not end."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._until = float("inf")
        self._what: str | None = ""
        self._thread = threading.Thread(target=self._watch, name="soak-watchdog", daemon=True)
        self._thread.start()

    def begin(self, what: str) -> None:
        with self._changed:
            self._what, self._until = what, time.monotonic() + self._limit
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._until = float("inf")

    def close(self) -> None:
        with self._changed:
            self._what = None
            self._changed.notify_all()
        self._thread.join()

    def _watch(self) -> None:
        with self._changed:
            while self._what is not None:
                self._changed.wait(min(self._limit, max(0.1, self._until - time.monotonic())))
                if self._what is not None and time.monotonic() > self._until:
                    print(f"FAILED: no end after {self._limit} s: {self._what}", file=sys.stderr)
                    faulthandler.dump_traceback(all_threads=True)
                    os._exit(1)


class Soak:
    """Scenarios by chance, from one seed.

    ``patience``: seconds for threads, timers and finalizers that are about to end.
    """

    def __init__(
        self,
        scenarios: Mapping[str, Scenario],
        seed: str,
        *,
        patience: float = DEADLINE,
        memory: Memory | None = None,
    ) -> None:
        self._patience = patience
        self._scenarios = dict(scenarios)
        self.seed = seed
        self.runs: Counter[str] = Counter()
        self.memory = memory or Memory()
        self._alarms: list[str] = []

    def run(self, seconds: float) -> None:
        """Run for so long; raise :class:`SoakFailed` at the first thing that is wrong."""
        until = time.monotonic() + seconds
        with self._alarmed(), contextlib.closing(Watchdog(LIMIT)) as watchdog:
            self._run(watchdog, until)

    def again(self, name: str, chance: str, seconds: float) -> None:
        """Run one scenario on one chance, over and over: threads decide, too."""
        until = time.monotonic() + seconds
        with self._alarmed(), contextlib.closing(Watchdog(LIMIT)) as watchdog:
            while time.monotonic() < until:
                self._once(watchdog, name, chance, exactly=self.runs[name] > WARM_UP)

    def _run(self, watchdog: Watchdog, until: float) -> None:
        number = 0
        for number, name in enumerate(list(self._scenarios) * WARM_UP):
            if time.monotonic() > until:
                return
            self._once(watchdog, name, f"{self.seed}.{number}", exactly=False)
        gc.collect()
        thaw = not gc.get_freeze_count()  # a whole suite stays frozen
        gc.freeze()
        try:
            order = Chance(self.seed)
            while time.monotonic() < until:
                number += 1
                name = order.choice(list(self._scenarios))
                self._once(watchdog, name, f"{self.seed}.{number}", exactly=True)
                self.memory.sample()
        finally:
            if thaw:
                gc.unfreeze()
        if grown := self.memory.grown():
            where = self._where_it_grows(watchdog, number)
            raise SoakFailed(
                f"memory grows: {', '.join(grown)} (seed {self.seed}); mostly\n{where}"
            )

    def _once(self, watchdog: Watchdog, name: str, chance: str, *, exactly: bool) -> None:
        what = f"{name}, backend {rstreams_fast.backend}, chance {chance}"
        switch = sys.getswitchinterval()
        watchdog.begin(what)
        try:
            self._judge(self._scenarios[name], Chance(f"{name} {chance}"), exactly)
        except Exception as wrong:
            raise SoakFailed(
                f"{what}:\n{''.join(traceback.format_exception(wrong))}\n"
                f"Run it again, and again, for 60 seconds:\n"
                f"    RSTREAMS_FAST_BACKEND={rstreams_fast.backend} python -m tests.soak "
                f"--seconds 60 --scenario {name} --chance {chance}"
            ) from None
        finally:
            watchdog.end()
            sys.setswitchinterval(switch)
        self.runs[name] += 1

    def _judge(self, scenario: Scenario, chance: Chance, exactly: bool) -> None:
        before = Before(self._patience) if exactly else None
        sys.setswitchinterval(chance.choice((1e-6, 5e-5, 5e-3)))
        place = Place(chance.fork(), self._patience)
        try:
            scenario(chance, place)
        finally:
            place.close()
        del place
        if before is not None:
            before.check()
        if self._alarms:
            alarms, self._alarms[:] = "\n".join(self._alarms), []
            raise AssertionError(f"raised where nobody could take it:\n{alarms}")

    def _where_it_grows(self, watchdog: Watchdog, number: int) -> str:
        """The lines whose memory grows, over some more rounds."""
        tracemalloc.start(8)
        try:
            looks = []
            for _ in range(3):
                for name in self._scenarios:
                    number += 1
                    self._once(watchdog, name, f"{self.seed}.{number}", exactly=False)
                gc.collect()
                looks.append(tracemalloc.take_snapshot())
            grown = looks[2].compare_to(looks[1], "traceback")
            return "\n".join(
                "\n".join([f"{one.size_diff} bytes:", *one.traceback.format()]) for one in grown[:5]
            )
        finally:
            tracemalloc.stop()

    @contextlib.contextmanager
    def _alarmed(self) -> Iterator[None]:
        """What is raised where nobody takes it counts; errors that came too late are expected."""

        def unraisable(args: Any) -> None:
            self._alarms.append(f"{args.err_msg or ''} {args.exc_value!r} in {args.object!r:.200}")

        def in_thread(args: Any) -> None:
            self._alarms.append(f"{args.exc_value!r} left thread {args.thread!r}")

        hooks = sys.unraisablehook, threading.excepthook, on_dropped_error(lambda _error: None)
        log = logging.getLogger("rstreams_fast")
        disabled = log.disabled
        sys.unraisablehook, threading.excepthook = unraisable, in_thread
        log.disabled = True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                yield
        finally:
            sys.unraisablehook, threading.excepthook = hooks[:2]
            on_dropped_error(hooks[2])
            log.disabled = disabled
