"""The queues of ``publish_on``: they hold elements for the drain, and request more elements."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from rstreams_fast._checks import Weigher, weigh
from rstreams_fast.core import DemandCounter, SpscRing, Wip
from rstreams_fast.errors import DemandExceededError
from rstreams_fast.streams.engine.boundary import InputRing
from rstreams_fast.streams.engine.defaults import replenish_at

__all__ = ["Ask", "BoundaryQueue", "ElementQueue", "WeighedQueue", "ignore"]

Ask = Callable[[int], object]
"""Requests ``n`` elements of upstream. An error of upstream's ``request`` ends the stream."""


def ignore(_argument: object, /) -> None:
    """Do nothing. Replaces the functions that a queue calls, when the stream has ended."""


class BoundaryQueue(Protocol):
    """Holds the elements of a boundary in a ring, and requests more elements.

    The drain calls all methods. ``input.accept`` is for the thread that upstream signals on.
    """

    #: Whether a run above may offer to the ring directly. Otherwise each element must pass through
    #: ``input.accept``, which requests more elements on the thread that calls it.
    direct: ClassVar[bool]
    #: Whether the drain takes one element at a time, so that its place is soon free.
    one_by_one: ClassVar[bool]
    #: The most elements that the ring holds.
    capacity: int
    #: The ring, and the function that adds an element to it.
    input: InputRing

    @property
    def held_bytes(self) -> int | None:
        """The bytes of the elements held; ``None`` if bytes are not counted."""

    def source(self) -> Any:
        """Return the ring or iterator from which a ``FusedRun`` takes the elements."""

    def is_empty(self) -> bool:
        """Return whether the queue holds no element."""

    def first_ask(self) -> None:
        """Make the first request."""

    def replenish(self, pulled: int, /) -> None:
        """Request more elements. The drain has taken out ``pulled`` elements since the start."""

    def drop(self) -> None:
        """Drop the elements held. An element that comes later is accepted and dropped."""


class ElementQueue:
    """A ring of elements. It requests more when three quarters of its capacity are consumed."""

    __slots__ = ("_acknowledged", "_ask", "_left", "_replenish_at", "capacity", "input")

    direct: ClassVar[bool] = True
    one_by_one: ClassVar[bool] = False
    held_bytes: ClassVar[None] = None

    def __init__(self, capacity: int, total: int, ask: Ask) -> None:
        self.input = InputRing(SpscRing(capacity))
        self.capacity = capacity
        self._replenish_at = replenish_at(capacity)
        self._left = total  # how many elements may still be requested
        self._acknowledged = 0  # elements consumed, for which new elements have been requested
        self._ask = ask

    def source(self) -> Any:
        return self.input.elements

    def is_empty(self) -> bool:
        return len(self.input.elements) == 0

    def first_ask(self) -> None:
        self._ask_within_total(self.capacity)

    def replenish(self, pulled: int, /) -> None:
        consumed = pulled - self._acknowledged
        if consumed >= self._replenish_at:
            self._acknowledged = pulled
            self._ask_within_total(consumed)

    def _ask_within_total(self, n: int) -> None:
        n = min(n, self._left)
        if n > 0:
            self._left -= n
            self._ask(n)

    def drop(self) -> None:
        self.input.drop()
        self._ask = ignore


class WeighedQueue:
    """A ring of elements that also has a bound in bytes.

    An element can be weighed only after it has come. So one element is requested at a time, while
    fewer than ``max_bytes`` are held. The queue holds at most ``max_bytes`` and one element more. A
    single element that is larger than ``max_bytes`` passes.

    The right to ask is a lock, taken as long as an element is outstanding. The right passes from
    the drain to the thread that upstream signals on, and back to the drain when there is no room.
    So upstream goes on while the drain delivers a slow element, and requests do not overlap (§2.7).
    """

    __slots__ = (
        "_acknowledged",
        "_arrived",
        "_ask",
        "_deciding",
        "_expected",
        "_fail",
        "_gone",
        "_left",
        "_max_bytes",
        "_outstanding",
        "_weigher",
        "_weights",
        "capacity",
        "input",
    )

    direct: ClassVar[bool] = False
    one_by_one: ClassVar[bool] = True

    def __init__(
        self,
        capacity: int,
        total: int,
        max_bytes: int,
        weigher: Weigher,
        *,
        ask: Ask,
        fail: Callable[[BaseException], object],
    ) -> None:
        self.input = InputRing(SpscRing(capacity), self._accept)
        self.capacity = capacity
        self._left = total  # how many elements may still be requested
        self._max_bytes = max_bytes
        self._weigher: Weigher | None = weigher
        self._weights: deque[int] = deque()  # weights of the elements held, oldest first
        self._arrived = 0  # bytes, counted by upstream's thread
        self._gone = 0  # bytes, counted by the drain
        self._acknowledged = 0  # elements consumed, whose bytes are in _gone
        self._outstanding = threading.Lock()
        self._expected = DemandCounter()  # elements requested that have not come: 1 at most
        self._deciding = Wip()  # an element may come within the request
        self._ask = ask
        self._fail = fail

    @property
    def held_bytes(self) -> int:
        return self._arrived - self._gone

    def source(self) -> Any:
        return self.input.elements

    def is_empty(self) -> bool:
        return len(self.input.elements) == 0

    def _accept(self, element: Any, /) -> bool:
        # The weigher may cancel the stream, and drop() then replaces both.
        fail, weigher = self._fail, self._weigher
        if weigher is None:
            return True  # the stream is over: the element is dropped
        try:
            self._expected.fulfil(1)
        except DemandExceededError:
            return False
        try:
            weight = weigh(weigher, element)
        except Exception as raised:
            fail(raised)
            return True
        self._weights.append(weight)
        self._arrived += weight
        if not self.input.elements.offer(element):
            return False
        self._decide()
        return True

    def _decide(self) -> None:
        """Ask for the next element, or release the right to ask. For the holder of that right."""
        if not self._deciding.enter():
            return  # the thread that is in the loop below decides again
        while True:
            consumed = self._acknowledged
            if len(self._weights) < self.capacity and self.held_bytes < self._max_bytes:
                if self._left > 0:
                    self._left -= 1
                    self._expected.request(1)
                    self._ask(1)
            else:
                self._outstanding.release()
                # Meanwhile the drain may have made room, but it found the right to ask taken.
                if consumed != self._acknowledged and self._outstanding.acquire(blocking=False):
                    continue
            if self._deciding.leave():
                return

    def first_ask(self) -> None:
        if self._outstanding.acquire(blocking=False):
            self._decide()

    def replenish(self, pulled: int, /) -> None:
        while self._acknowledged < pulled:
            self._gone += self._weights.popleft()
            self._acknowledged += 1  # last, as it tells _decide that there is room
        self.first_ask()

    def drop(self) -> None:
        self.input.drop()
        self._gone = self._arrived
        self._weigher = None
        self._ask = self._fail = ignore
