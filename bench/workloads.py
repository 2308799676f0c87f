"""The work that contestants do to elements, and how its result is checked.

A contestant feeds ``0 .. n - 1`` to a sink. Each is first run with a sink that keeps everything, so
that one which loses, doubles or reorders fails instead of being fast; timed runs are checked by the
sink's sum.
"""

from __future__ import annotations

import operator
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rstreams_fast import UNBOUNDED, Subscription

#: Seconds any single run may take before it counts as hung.
DEADLINE = 60.0
#: What bounds every bounded boundary: elements.
BOUND = 1024
#: Elements that are moved together, where they are.
BURST = 256
#: How many elements the untimed check of a contestant moves.
CHECKED = 5000


@dataclass(frozen=True)
class Callables:
    """The user code of the fused workload."""

    map: Callable[[int], int]
    predicate: Callable[[int], object]

    def expected(self, n: int) -> list[int]:
        return [mapped for i in range(n) if self.predicate(mapped := self.map(i))]


def add_one(x: int) -> int:
    return x + 1


def is_even(x: int) -> bool:
    return x % 2 == 0


#: Two Python functions; half of the elements pass.
PYTHON_CALLABLES = Callables(add_one, is_even)
#: Two C functions; all but 0 pass.
C_CALLABLES = Callables(operator.neg, operator.truth)


class Sink:
    """A subscriber that asks for everything; ``wait`` returns when the stream has ended."""

    on_next: Callable[[int], None]

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: BaseException | None = None

    def on_subscribe(self, subscription: Subscription) -> None:
        subscription.request(UNBOUNDED)

    def on_error(self, error: BaseException) -> None:
        self._error = error
        self._done.set()

    def on_complete(self) -> None:
        self._done.set()

    def wait(self) -> None:
        """Wait for the terminal signal; raise what ``on_error`` brought."""
        if not self._done.wait(DEADLINE):
            raise TimeoutError(f"no terminal signal within {DEADLINE} s")
        if self._error is not None:
            raise self._error


class Summing(Sink):
    """``on_next`` is a Python method that does next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def on_next(self, element: int) -> None:
        self.total += element


class Collecting(Sink):
    """Keeps every element, and the threads they came in on."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[int] = []
        self.threads: set[int] = set()

    def on_next(self, element: int) -> None:
        self.elements.append(element)
        self.threads.add(threading.get_ident())


class Appending(Sink):
    """``on_next`` is C code, the ``append`` of a deque that keeps the last four elements."""

    def __init__(self) -> None:
        super().__init__()
        self._last: deque[int] = deque(maxlen=4)
        self.on_next = self._last.append

    @property
    def total(self) -> int:
        return sum(self._last)
