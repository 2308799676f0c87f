"""The queues of ``publish_on``. A queue requests elements, and holds them until the delivery."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from rstreams_fast._checks import Weigher, weigh
from rstreams_fast.core import DemandCounter, SpscRing, Wip
from rstreams_fast.errors import DemandExceededError
from rstreams_fast.runtime.turns import Turns
from rstreams_fast.streams.engine.boundary import InputRing
from rstreams_fast.streams.engine.defaults import replenish_at

__all__ = ["BoundaryQueue", "ElementQueue", "RequestFunction", "WeighedQueue", "ignore"]

RequestFunction = Callable[[int], object]
"""A function that requests ``n`` elements. If upstream's ``request`` raises, the stream fails."""


def ignore(_argument: object, /) -> None:
    """Do nothing: replaces a queue's functions ``request`` and ``fail`` after the stream's end."""


class BoundaryQueue(Protocol):
    """Interface of the queues: a queue holds elements in a ring, and requests more elements.

    ``input.accept``, which adds an element, is called on the thread on which upstream signals. The
    methods of this class are called on the thread that delivers the elements.
    """

    #: ``direct``: whether upstream's stages (such as ``map``) may put elements in the ring
    #: directly. If false, each element must pass through ``accept`` (see ``input``), which may also
    #: make a request.
    direct: ClassVar[bool]
    #: ``one_by_one``: whether the delivering thread must take out one element at a time, so that
    #: the queue can request a new element after each element.
    one_by_one: ClassVar[bool]
    #: The maximum number of elements in the ring.
    capacity: int
    #: The ring, and the function ``accept``, which adds an element to the ring.
    input: InputRing

    @property
    def held_bytes(self) -> int | None:
        """The size of all held elements, in bytes; ``None`` if the queue does not count bytes."""

    def source(self) -> Any:
        """Return the ring or iterator from which the stages below take the elements."""

    def is_empty(self) -> bool:
        """Return whether the queue holds no element."""

    def first_request(self) -> None:
        """Make the first request to upstream."""

    def replenish(self, pulled: int, /) -> None:
        """Request more elements, if there is room.

        ``pulled``: how many elements were taken out of the queue since the stream began.
        """

    def drop(self) -> None:
        """Drop all elements in the queue, and all elements that arrive later."""


class ElementQueue:
    """A ring that requests new elements when three quarters of its capacity are consumed.

    Args:
        capacity: The maximum number of elements in the ring.
        total: The maximum number of elements that the ring requests until the end of the stream.
        request: The function that makes a request to upstream.
    """

    __slots__ = ("_acknowledged", "_left", "_replenish_at", "_request", "capacity", "input")

    direct: ClassVar[bool] = True
    one_by_one: ClassVar[bool] = False
    held_bytes: ClassVar[None] = None

    def __init__(self, capacity: int, total: int, request: RequestFunction) -> None:
        self.input = InputRing(SpscRing(capacity))
        self.capacity = capacity
        self._replenish_at = replenish_at(capacity)
        self._left = total
        self._acknowledged = 0  # how many elements were taken out before the last ``request``
        self._request = request

    def source(self) -> Any:
        return self.input.elements

    def is_empty(self) -> bool:
        return len(self.input.elements) == 0

    def first_request(self) -> None:
        self._request_within_total(self.capacity)

    def replenish(self, pulled: int, /) -> None:
        consumed = pulled - self._acknowledged
        if consumed >= self._replenish_at:
            self._acknowledged = pulled
            self._request_within_total(consumed)

    def _request_within_total(self, n: int) -> None:
        n = min(n, self._left)
        if n > 0:
            self._left -= n
            self._request(n)

    def drop(self) -> None:
        self.input.drop()
        self._request = ignore


class WeighedQueue:
    """A ring of elements that also has a bound in bytes.

    The weight of an element is known only after the element has arrived. So the queue requests one
    element at a time, and only while it holds less than ``max_bytes``. It never holds more than
    ``max_bytes`` and one more element. This element may be larger than ``max_bytes``.

    Two threads make requests: *upstream's thread*, on which elements arrive, and the *delivering
    thread*, which takes elements out. The lock ``_outstanding`` is held while a requested element
    has not arrived. When the element arrives, upstream's thread makes the next request, or releases
    the lock if there is no room. When the delivering thread has made room and the lock is free, it
    takes the lock and makes a request. So upstream can send while the subscriber processes an
    element, but requests do not overlap (§2.7).
    """

    __slots__ = (
        "_acknowledged",
        "_arrived",
        "_deciding",
        "_expected",
        "_fail",
        "_gone",
        "_left",
        "_max_bytes",
        "_outstanding",
        "_request",
        "_turns",
        "_weigher",
        "_weights",
        "capacity",
        "input",
        "paused",
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
        request: RequestFunction,
        fail: Callable[[BaseException], object],
        turns: Turns | None,
    ) -> None:
        self.input = InputRing(SpscRing(capacity), self._accept)
        self.capacity = capacity
        self._left = total  # how many elements may still be requested
        self._max_bytes = max_bytes
        self._weigher: Weigher | None = weigher
        # Upstream's thread writes ``_arrived``, the bytes of all elements that have arrived. The
        # delivering thread writes ``_gone``, the bytes of all elements that were taken out, and
        # ``_acknowledged``, the number of elements that were taken out.
        self._weights: deque[int] = deque()
        self._arrived = 0
        self._gone = 0
        self._acknowledged = 0
        self._outstanding = threading.Lock()
        self._expected = DemandCounter()  # requested elements that have not arrived: 0 or 1
        self._deciding = Wip()
        self._request = request
        self._fail = fail
        self._turns = turns
        self.paused = False

    @property
    def held_bytes(self) -> int:
        return self._arrived - self._gone

    def source(self) -> Any:
        return self.input.elements

    def is_empty(self) -> bool:
        return len(self.input.elements) == 0

    def _accept(self, element: Any, /) -> bool:
        # Copy ``_fail`` and ``_weigher`` to local variables: the weigher may cancel the stream, and
        # then ``drop`` replaces these fields.
        fail, weigher = self._fail, self._weigher
        if weigher is None:
            return True  # the stream is over: drop the element (False would mean an error)
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
        """If there is room, request the next element. If not, release the lock ``_outstanding``.

        The caller must hold the lock. After a request the lock stays held until upstream's thread
        has received the element, and calls this method again.
        """
        if not self._deciding.enter():
            return  # another call of _decide runs the loop below, and repeats it for this call
        while True:
            consumed = self._acknowledged
            if len(self._weights) < self.capacity and self.held_bytes < self._max_bytes:
                if self._left > 0:
                    self._left -= 1
                    self._expected.request(1)
                    self._request(1)
            else:
                self._outstanding.release()
                # Check for room again. If the delivering thread made room after the check above, it
                # could not take the lock to make a request, because this thread still held it.
                if consumed != self._acknowledged and self._outstanding.acquire(blocking=False):
                    continue
            if self._deciding.leave():
                return
            # The lock is held, and no requested element is outstanding. So no other thread calls
            # this method before resume() does.
            turns = self._turns
            if turns is not None and turns.is_over():
                turns.pause(self._deciding, self)
                return

    def resume(self) -> None:
        """Go on with the requests, in a new turn (a time slice of 1 ms)."""
        self.paused = False
        self._decide()

    def first_request(self) -> None:
        if self._outstanding.acquire(blocking=False):
            self._decide()

    def replenish(self, pulled: int, /) -> None:
        while self._acknowledged < pulled:
            self._gone += self._weights.popleft()
            # ``_decide``, on another thread, looks for room in ``_gone`` (bytes taken out), and
            # looks again if ``_acknowledged`` (elements taken out) has changed meanwhile. So change
            # ``_acknowledged`` last. Otherwise ``_decide`` might see the old ``_gone``, find no
            # room, and notice no change. Then no thread would make a request.
            self._acknowledged += 1
        self.first_request()

    def drop(self) -> None:
        self.input.drop()
        self._gone = self._arrived
        self._weigher = self._turns = None
        self._request = self._fail = ignore
