"""The asynchronous boundary of numpy streams: a ring of records, in memory that is allocated once.

``upstream -> | ring of records | -> stages -> subscriber``. As in ``publish_on`` all of the right
side runs on the resource. Arrays are copied into the ring by the thread that they come on, and out
of it, in pieces of another size, by the drain; so upstream may use its memory again.

What the capacity counts is records. How many an array has is not known before it has come, so one
array is asked for at a time, when all of the one before is in the ring: what is held is the ring,
and one array that does not fit yet. Putting in and asking is done by one thread at a time, who
holds ``_filling``: the one that an array comes on, or the drain, when it has made room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rstreams_fast._checks import check_capacity, check_count
from rstreams_fast.api import Subscriber
from rstreams_fast.core import DemandCounter, FusedRun, RecordRing
from rstreams_fast.errors import DemandExceededError
from rstreams_fast.runtime.executors import describe_executor
from rstreams_fast.streams.engine.stages import Need, Stages
from rstreams_fast.streams.operators.publish_on import AsyncBoundary, AsyncBoundarySubscription

__all__ = ["PublishRecordsOn"]


class PublishRecordsOn(AsyncBoundary):
    """The arguments of ``Stream.publish_records_on``, checked."""

    one_to_one = False

    def __init__(
        self, dtype: Any, executor: Any, capacity: int, chunk: int | None, delay_error: bool
    ) -> None:
        self.capacity = check_capacity("capacity", capacity)
        super().__init__(executor, self.capacity, None, None, delay_error)
        self.dtype = RecordRing(dtype, 1).dtype
        self.chunk = self.capacity if chunk is None else check_count("chunk", chunk, 1)

    @property
    def subscription_type(self) -> type[AsyncBoundarySubscription]:
        """What carries it out."""
        return _RecordSubscription

    def describe_within(self, need: Need) -> str:  # noqa: ARG002 - what is below changes nothing
        """Say how much is held, whatever is below can make use of."""
        late = ", errors after elements" if self.delay_error else ""
        return (
            f"publish_records_on({self.dtype}, {describe_executor(self.executor)}): "
            f"at most {self.capacity} records ({self.capacity * self.dtype.itemsize} bytes) "
            f"+ 1 array{late}"
        )


class _Chunks(Iterator[Any]):
    """What is in the ring, in arrays of at most ``size`` records; stops where that is nothing."""

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


class _RecordSubscription(AsyncBoundarySubscription):
    __slots__ = ("_chunk", "_filling", "_outstanding", "_records", "_rest")

    def __init__(
        self,
        subscriber: Subscriber[Any],
        options: PublishRecordsOn,
        program: Stages,
        need: Need,
    ) -> None:
        self._records = RecordRing(options.dtype, options.capacity)
        self._chunk = options.chunk
        self._rest: Any = None  # of the array that has come: what is not in the ring yet
        self._outstanding = DemandCounter()  # arrays asked for that have not come: at most 1
        self._filling = DemandCounter()  # WIP of putting in and asking
        need = Need()  # what is below asks for arrays, and not for records
        super().__init__(subscriber, options, program, need)
        self.turns = None  # the thread that makes room asks
        self.ring = None  # elements come one by one, as they must be copied

    def _new_queue(self) -> Any:
        return self._records

    def _source(self) -> Any:
        return _Chunks(self._records, self._chunk, self._fill)

    def _accept(self, element: Any) -> bool:
        if self._outstanding.value == 0:
            return False
        if self.custody is not None:
            self.custody.claim(element)  # it is copied
        self._rest = element  # first: once it has come, one that sees no rest asks for the next
        try:
            self._outstanding.fulfil(1)
        except DemandExceededError:
            return False
        self._fill()
        return True

    def _fill(self) -> None:
        """Put in what fits of the array that has come; when all of it is in, ask for the next."""
        filling = self._filling
        if filling.request(1) != 0:
            return  # nested in the request below, or beside it: done there
        while True:
            missed = filling.value
            try:
                self._fill_now()
            except RecursionError:
                raise
            except Exception as raised:  # an array's class may have its own way of being sliced
                self._rest = None
                raised.add_note("publish_records_on takes arrays of the dtype it was given")
                self._fail(raised)
            if filling.fulfil(missed) == 0:
                return

    def _fill_now(self) -> None:
        idle = self._outstanding.value == 0  # read before the rest, which is there by then
        rest = self._rest
        if rest is not None:
            count = self._records.write(rest)
            self._rest = rest = rest[count:] if count < rest.shape[0] else None
        if self._demand.value < 0:
            self._rest = None
        elif rest is None and idle and not self._upstream.over:
            self._outstanding.request(1)
            self._request(1)

    def _empty(self) -> bool:
        return self._rest is None and len(self._records) == 0

    def _first_ask(self) -> None:
        self._fill()

    def _replenish(self, run: FusedRun) -> None:
        """What was taken has made room already."""

    def _held_bytes(self) -> int | None:
        return len(self._records) * self._records.dtype.itemsize

    def _drop_references(self) -> None:
        super()._drop_references()
        self._rest = None
