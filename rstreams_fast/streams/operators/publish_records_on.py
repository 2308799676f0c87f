"""``publish_records_on``: a ring of numpy records between threads, in memory allocated once.

``upstream -> ring of records -> stages -> subscriber``. As in ``publish_on``, everything to the
right of the ring runs on the resource (an executor). The thread that sends an array copies the
array into the ring, so upstream may use the array's memory again. The delivering thread copies
records out of the ring into new arrays of at most ``chunk`` records.

The capacity counts records. The number of records in an array is unknown until the array arrives.
So one array is requested at a time, when the ring has all records of the previous array. If an
array does not fit into the ring, the operator also holds the rest of this array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from rstreams_fast._checks import check_bool, check_capacity, check_count
from rstreams_fast.api import Publisher
from rstreams_fast.core import DemandCounter, RecordRing, Wip
from rstreams_fast.errors import DemandExceededError
from rstreams_fast.runtime.executors import check_executor, describe_executor
from rstreams_fast.runtime.turns import Turns
from rstreams_fast.streams.engine.boundary import InputRing, StagesBoundary
from rstreams_fast.streams.engine.custody import Custody
from rstreams_fast.streams.engine.stages import EVERYTHING, Need, Stages
from rstreams_fast.streams.engine.upstream import Upstream
from rstreams_fast.streams.operators.boundary_queues import RequestFunction, ignore
from rstreams_fast.streams.operators.publish_on import (
    AsyncBoundarySegment,
    AsyncBoundarySubscription,
)

__all__ = ["PublishRecordsOn"]


class PublishRecordsOn(StagesBoundary):
    def __init__(
        self, dtype: Any, executor: Any, capacity: int, chunk: int | None, delay_error: bool
    ) -> None:
        self.capacity = check_capacity("capacity", capacity)
        check_executor(executor)
        self.executor = executor
        self.delay_error = check_bool("delay_error", delay_error)
        self.dtype = RecordRing(dtype, 1).dtype
        self.chunk = self.capacity if chunk is None else check_count("chunk", chunk, 1)

    def attach_stages(self, upstream: Publisher[Any], stages: Stages, need: Need) -> Any:  # noqa: ARG002
        """Return a publisher that passes upstream's records through ``stages``, on the executor.

        ``need`` (the most elements that downstream can use) is ignored: it counts arrays, but the
        capacity of the ring counts records.
        """
        return AsyncBoundarySegment(upstream, self, stages, EVERYTHING)

    def new_queue(self, subscription: AsyncBoundarySubscription, _need: Need, /) -> _RecordQueue:
        return _RecordQueue(
            RecordRing(self.dtype, self.capacity),
            self.chunk,
            request=subscription._request,
            fail=subscription._fail,
            turns=subscription.turns,
            demand=subscription._demand,
            upstream=subscription._upstream,
            custody=subscription.custody,
        )

    def describe(self) -> str:
        late = ", errors after elements" if self.delay_error else ""
        return (
            f"publish_records_on({self.dtype}, {describe_executor(self.executor)}): "
            f"at most {self.capacity} records ({self.capacity * self.dtype.itemsize} bytes) "
            f"+ 1 array{late}"
        )


class _Chunks(Iterator[Any]):
    """An iterator that takes records out of the ring, in arrays of at most ``size`` records."""

    __slots__ = ("_made_room", "_ring", "_size")

    def __init__(self, ring: RecordRing, size: int, made_room: Callable[[], None]) -> None:
        self._ring = ring
        self._size = size
        self._made_room = made_room

    def __next__(self) -> Any:
        records = self._ring.read(self._size)
        if not len(records):
            raise StopIteration
        self._made_room()
        return records


class _RecordQueue:
    """Holds a ring of records, and the part of the newest array for which the ring has no room.

    Two threads copy records into the ring and request arrays: the thread on which upstream signals,
    and the delivering thread when it has made room. ``_filling`` lets one thread at a time do this.
    """

    __slots__ = (
        "_chunk",
        "_custody",
        "_demand",
        "_fail",
        "_filling",
        "_outstanding",
        "_records",
        "_request",
        "_rest",
        "_turns",
        "_upstream",
        "capacity",
        "input",
        "paused",
    )

    direct: ClassVar[bool] = False
    one_by_one: ClassVar[bool] = False

    def __init__(
        self,
        records: RecordRing,
        chunk: int,
        *,
        request: RequestFunction,
        fail: Callable[[BaseException], None],
        turns: Turns | None,
        demand: DemandCounter,
        upstream: Upstream,
        custody: Custody | None,
    ) -> None:
        self.input = InputRing(records, self._accept)
        self.capacity = records.capacity
        self._records = records
        self._chunk = chunk
        self._rest: Any = None  # the records of the newest array that are not in the ring yet
        self._outstanding = DemandCounter()
        self._filling = Wip()
        self._request = request
        self._fail = fail
        self._turns = turns
        self.paused = False
        self._demand = demand  # the demand of downstream; negative after the end
        self._upstream = upstream
        self._custody = custody

    @property
    def held_bytes(self) -> int:
        return len(self.input.elements) * self._records.dtype.itemsize

    def source(self) -> Iterator[Any]:
        return _Chunks(self._records, self._chunk, self._fill)

    def is_empty(self) -> bool:
        return self._rest is None and len(self._records) == 0

    def _accept(self, element: Any, /) -> bool:
        if self._outstanding.value == 0:
            return False
        if self._custody is not None:
            # The array counts as used, because its records are copied into the ring. So call
            # ``claim``: then the hook of ``on_discard`` does not get the array.
            self._custody.claim(element)
        # Set ``_rest`` (the array that has arrived) before ``_outstanding`` (how many requested
        # arrays have not arrived). In the other order, ``_fill_now``, on another thread, might see
        # the array in neither field, and request the next array too early.
        self._rest = element
        try:
            self._outstanding.fulfil(1)
        except DemandExceededError:
            return False
        self._fill()
        return True

    def _fill(self) -> None:
        """Copy as many records of the array ``_rest`` as fit into the ring.

        If all records of the array were copied, request the next array.
        """
        filling = self._filling
        # Copy ``_fail`` to a local variable. Slicing an array can run user code, which may cancel
        # the stream and then raise. The cancel calls ``drop``, which replaces ``self._fail`` by a
        # function that does nothing. A call of ``self._fail`` would then lose the error.
        fail = self._fail
        if not filling.enter():
            return  # another call of _fill runs the loop below, and repeats it for this call
        while True:
            missed = filling.missed
            try:
                self._fill_now()
            except RecursionError:
                raise
            except Exception as raised:  # wrong dtype, or slicing raised
                self._rest = None
                raised.add_note("publish_records_on takes arrays of the dtype it was given")
                fail(raised)
            if filling.leave(missed):
                return
            turns = self._turns
            if turns is not None and turns.is_over():
                turns.pause(filling, self)
                return

    def resume(self) -> None:
        """Go on with the requests, in a new turn (a time slice of 1 ms)."""
        self.paused = False
        self._fill()

    def _fill_now(self) -> None:
        # Read ``_outstanding`` (how many requested arrays have not arrived) before ``_rest`` (the
        # array that has arrived). In the other order, an array that arrives between the two reads
        # would be seen in neither field, and this method would request the next array too early.
        idle = self._outstanding.value == 0
        rest = self._rest
        if rest is not None:
            count = self._records.write(rest)
            self._rest = rest = rest[count:] if count < rest.shape[0] else None
        if self._demand.value < 0:
            self._rest = None
        elif rest is None and idle and not self._upstream.over:
            self._outstanding.request(1)
            self._request(1)

    def first_request(self) -> None:
        self._fill()

    def replenish(self, _pulled: int, /) -> None:
        """Do nothing: after each read of the ring, ``_Chunks`` calls ``_fill`` to request more."""

    def drop(self) -> None:
        self.input.drop()
        self._rest = self._turns = None
        self._request = self._fail = ignore
