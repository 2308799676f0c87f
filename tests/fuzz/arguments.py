"""A fuzzer of every public callable of the compiled backend: an exception, never a crash.

Bytes become calls: a class, arguments for its constructor, then methods with arguments out of a
chest of what people hand over by mistake, and of what is made to hurt (an ``__index__`` that lies
or calls back, a list that shrinks while it is read, a hostile ``__eq__``). What a call answers does
not matter here, which the suite of twins compares; that the process lives on does, and that
``SystemError`` (a C function that broke the interpreter's rules) never comes.

Run by ``tests/fuzz/run`` with the extension built under ASan, and by atheris, which looks for new
code paths in it; or by hand, without either: ``python -m tests.fuzz.arguments --blind 10``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from rstreams_fast import core
from rstreams_fast.core import MISSING
from rstreams_fast.core.stage_table import STAGES

LONGEST = 60  # calls in one run
LOOP = asyncio.new_event_loop()
#: Making an object anew does nothing to one of the extension, and everything to one in Python.
AGAIN = ("__init__",) if core.backend == "c" else ()
PLANTED = os.environ.get("RSTREAMS_FAST_PLANT") == "1"


class Bytes:
    """Decisions, out of bytes; when they run out, each is the first that there is."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def below(self, n: int) -> int:
        if not self:
            return 0
        self._at += 1
        return self._data[self._at - 1] % n

    def choose(self, options: Any) -> Any:
        return options[self.below(len(options))]


class Lying:
    """Answers everything wrongly, and each time otherwise."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._asked = 0

    def __index__(self) -> int:
        self._asked += 1
        self._call()
        return (1, -1, 2**63, 2)[self._asked % 4]

    def __eq__(self, other: object) -> bool:
        raise ValueError("not comparable")

    def __hash__(self) -> int:
        raise ValueError("not hashable")

    def __bool__(self) -> bool:
        self._call()
        raise ValueError("neither true nor false")

    def __float__(self) -> float:
        return float("nan")

    def __iter__(self) -> Any:
        self._call()
        yield 1
        yield None
        raise ValueError("not to be iterated")

    def __del__(self) -> None:
        self._call()


class Shrinking(list[Any]):
    """A list that is emptied while somebody looks at it."""

    def __len__(self) -> int:
        n = super().__len__()
        self.clear()
        return n


class Subscriber:
    """Calls back into what calls it."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def on_subscribe(self, subscription: Any, /) -> None:
        self._call()

    def on_next(self, element: Any, /) -> None:
        self._call()
        if element == 3:
            raise ValueError("three")

    def on_error(self, error: BaseException, /) -> None:
        self._call()

    def on_complete(self) -> None:
        self._call()


#: Made anew for each call, so that their references can be counted.
WATCHED = {list, object, ValueError, Lying, Shrinking, Subscriber}


async def _nothing(*_: Any) -> int:
    return 1


async def _waits(*_: Any) -> int:
    await asyncio.sleep(0)
    return 1


BURST_NAMES = [
    *("__next__", "__anext__", "__class_getitem__"),
    *("_first_of", "_next_of_burst", "_forget_burst"),
]


class Bursts(core.BurstIterator):  # type: ignore[misc]
    """Bursts of anything, made by the caller that comes back meanwhile."""

    def __init__(self, call: Callable[[], object], make: Callable[[], Any]) -> None:
        self._call = call
        self._make = make

    def _refill(self) -> Any:
        self._call()
        return self._first_of([self._make() for _ in range(3)])

    async def _refill_async(self) -> Any:
        await asyncio.sleep(0)
        return self._refill()


class Fuzzed:
    """The objects of one run and the calls on them, in a callback of the loop, as windows ask."""

    def __init__(self, data: bytes) -> None:
        self._bytes = Bytes(data)
        self._made: list[Any] = []
        self._views: list[Any] = []
        self._given: list[Any] = []
        self._depth = 0

    def run(self) -> None:
        LOOP.call_soon(self._steps)
        for _ in range(3):  # turns of the loop: suspended calls go on, windows are told
            LOOP.call_soon(LOOP.stop)
            LOOP.run_forever()
        self._made.clear()
        self._views.clear()
        self._count_references()
        if broken:
            raise AssertionError("; ".join(broken))

    def _steps(self) -> None:
        calls = 0
        while self._bytes and calls < LONGEST:
            calls += 1
            self._step()

    def _count_references(self) -> None:
        # The interpreter keeps what was freed once too often, and so hides it from ASan.
        while self._given:
            given = self._given.pop()
            ours = 2 + sum(other is given for other in self._given)  # the name, and the argument
            if sys.getrefcount(given) < ours:
                broken.append(f"a reference too few to {type(given).__name__}")

    def _step(self) -> None:
        what = self._bytes.below(8)
        with contextlib.suppress(Exception, asyncio.CancelledError, GeneratorExit):
            try:
                if what == 0 or not self._made:
                    self._make()
                else:
                    self._call(self._bytes.choose(self._made))
            except SystemError as error:
                note_system_error(error)

    def _reenter(self) -> None:
        if self._depth < 3 and self._bytes and self._made:
            self._depth += 1
            try:
                self._step()
            finally:
                self._depth -= 1

    def _make(self) -> None:
        cls = self._bytes.choose(
            (
                core.DemandCounter,
                core.Wip,
                core.Latch,
                core.SpscRing,
                core.SignalSerializer,
                core.FusedRun,
                core.RecordRing,
                core.CallWindow,
                Bursts,
            )
        )
        sane = self._bytes.below(4) > 0
        small = 1 + self._bytes.below(9)
        arguments: tuple[Any, ...] = tuple(self._any() for _ in range(self._bytes.below(4)))
        options: dict[str, Any] = {}
        if cls is core.SpscRing and sane:
            arguments = (small,)
        elif cls is core.RecordRing and sane:
            arguments = (self._bytes.choose(("u1", "f8", "i4,f8", "S3", "O", "V0", ">i2")), small)
        elif cls is core.SignalSerializer and sane:
            arguments = (Subscriber(self._reenter),)
            options = {"capacity": small, "on_full": self._bytes.choose(("error", "nonsense"))}
        elif cls is core.FusedRun and sane:
            arguments = (self._source(), self._program(), self._slot(), core.DemandCounter(small))
        elif cls is core.CallWindow and sane:
            arguments = (self._bytes.choose((_nothing, _waits, self._function, None, 3)),)
            options = {
                "loop": LOOP,
                "on_ready": self._reenter,
                "concurrency": small,
                "capacity": small + self._bytes.below(9),
                "ordered": self._bytes.below(2) == 0,
                "spread": self._bytes.below(2) == 0,
                "dedupe": self._bytes.below(2) == 0,
            }
        elif cls is Bursts:
            arguments = (self._reenter, self._any)
        self._made.append(cls(*arguments, **options))

    def _call(self, target: Any) -> None:
        names = [name for name in dir(type(target)) if not name.startswith("_")]
        if isinstance(target, Bursts):
            names += BURST_NAMES
        name = self._bytes.choose([*names, "__len__", "__reduce__", *AGAIN])
        member = getattr(target, name)
        if not callable(member):
            return
        if name in {"put", "get"}:
            # They would wait; what they take besides the time-out is any thing.
            result = member(*(self._any() for _ in range(self._bytes.below(2))), timeout=0)
        elif name in {"aput", "aget"}:
            waiting = member(*(self._any() for _ in range(self._bytes.below(2))))
            try:
                waiting.send(None)
            finally:
                waiting.close()
            return
        else:
            result = member(*self._arguments(target, name))
        if name == "__anext__":
            self._made.append(result)
        if isinstance(result, np.ndarray):
            self._views.append(result)
            if result.size and result.flags.writeable:
                result[...] = np.zeros((), dtype=result.dtype)
        if len(self._views) > self._bytes.below(6):
            self._views.clear()

    def _arguments(self, target: Any, name: str) -> tuple[Any, ...]:
        # Mostly what the method is for, so that it gets beyond the checks of its arguments.
        if self._bytes.below(4) > 0:
            if name in {"submit_many", "offer_many"}:
                return ([self._any() for _ in range(self._bytes.below(5))],)
            if name in {"submit_from", "take_into"}:
                return (self._ring(), self._bytes.below(5))
            if name in {"write", "read_into"} and isinstance(target, core.RecordRing):
                return (np.zeros(self._bytes.below(9), target.dtype),)
            if name in {"take", "poll_many", "drain", "request", "fulfil", "reserve", "peek"}:
                return (self._bytes.choose((1, 2, 40, 0)),)
            if name in {"commit", "release", "read"}:
                return (self._bytes.below(3),)
        return tuple(self._any() for _ in range(self._bytes.below(3)))

    def _ring(self) -> Any:
        rings = [made for made in self._made if isinstance(made, core.SpscRing)]
        return self._bytes.choose([core.SpscRing(3), *rings])

    def _function(self, *arguments: Any) -> Any:
        self._reenter()
        return self._bytes.choose((1, True, None, arguments, 0, 2.5))

    def _slot(self) -> Any:
        return self._bytes.choose((self._function, [].append, core.SpscRing(4), None, len))

    def _source(self) -> Any:
        def generator() -> Any:
            for n in range(9):
                self._reenter()
                yield n

        return self._bytes.choose(
            (range(9), generator(), core.SpscRing(3), None, iter([1, None]), Lying(self._reenter))
        )

    def _program(self) -> Any:
        stages: list[tuple[Any, ...]] = []
        for _ in range(self._bytes.below(4)):
            name = self._bytes.choose((*STAGES, "nonsense"))
            kind = STAGES.get(name)
            if kind is not None and kind.least is not None:
                stages.append((name, self._bytes.choose((0, 1, 2, 2**63, -1, 2**70))))
            elif kind is not None and kind.seeded:
                stages.append((name, self._function, self._bytes.choose((MISSING, 1, None))))
            else:
                stages.append((name, self._bytes.choose((self._function, abs, None, str, bool))))
        return self._bytes.choose((tuple(stages), tuple(stages), tuple(stages), stages, None))

    def _any(self) -> Any:
        given = self._bytes.choose(
            (
                1,
                0,
                2,
                3,
                -1,
                7,
                None,
                True,
                2**63 - 1,
                2**63,
                2**64,
                -(2**63) - 1,
                1.5,
                "1",
                b"\x00",
                (),
                [1, 2, 3],
                (1, None, 3),
                Shrinking([1, 2, 3]),
                Lying(self._reenter),
                self._function,
                Subscriber(self._reenter),
                ValueError("an error"),
                KeyError,
                object(),
                self._made[-1] if self._made else None,
                np.zeros(3),
                np.zeros(5, dtype="u1")[::2],
                np.zeros((2, 2)),
                np.array(3),
                memoryview(b"abc"),
                range(3),
            )
        )
        if type(given) in WATCHED:
            self._given.append(given)
        return given


#: What was seen and must not be; raised at the end of the run, past everything that would hide it.
broken: list[str] = []


def note_system_error(error: BaseException | None) -> None:
    """Note a SystemError: a C function that broke the interpreter's rules. Else do nothing."""
    if isinstance(error, SystemError):
        broken.append(f"a C function broke the interpreter's rules: {error}")


def one_input(data: bytes) -> None:
    """Make the calls that ``data`` says."""
    Fuzzed(data).run()
    if PLANTED and data[:1] == b"!":
        ctypes.string_at(0)  # what must be found, to prove that something would be


def blind(seconds: float) -> int:
    """Random bytes, from one seed, for so long; how many runs that were."""
    chance = random.Random(1)
    until = time.monotonic() + seconds
    runs = 0
    while time.monotonic() < until:
        one_input(chance.randbytes(chance.randrange(1, 200)))
        runs += 1
    return runs


def main() -> None:
    """Run under atheris, or blindly."""
    # What functions raise here is meant, wherever it ends up.
    sys.unraisablehook = lambda unraisable: note_system_error(unraisable.exc_value)
    LOOP.set_exception_handler(lambda _, context: note_system_error(context.get("exception")))
    logging.disable()
    if sys.argv[1:2] == ["--blind"]:
        print(f"{blind(float(sys.argv[2]))} runs")
        return
    import atheris

    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
