"""``map_blocking``: a plain function on a pool of threads or processes, several calls at a time.

``map_async`` with a window of calls that a pool makes: its bounds, its order and its errors hold
here. What ends enters the drain, on a thread of its own: an event loop would take as much of a
processor again as the rest, which the calls need.

To hand an element over and back takes longer than a short call. So a submission to the pool is a
burst: calls for several elements, one after the other. When they have taken ``SECONDS`` it makes no
more, and what it has left is submitted anew: so a result waits no longer than that, and for the
call that runs then.
"""

from __future__ import annotations

import os
import traceback
from collections import deque
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from time import perf_counter
from typing import Any, Final

from rstreams_fast._checks import check_sync, describe_callable
from rstreams_fast.core import DemandCounter, SpscRing
from rstreams_fast.runtime.executors import (
    Resource,
    Work,
    WorkDroppedError,
    cancelled_by_executor,
    resource,
    submit_of,
    taken,
)
from rstreams_fast.runtime.parking import running_loop
from rstreams_fast.runtime.shared_threads import shared_threads
from rstreams_fast.streams.engine.custody import Custody
from rstreams_fast.streams.engine.signals import report_late
from rstreams_fast.streams.operators.map_async import MapAsync

__all__ = ["MapBlocking"]

AIM: Final = 0.003
"""So many seconds a burst is to take."""

SECONDS: Final = 0.004
"""After so long a burst makes no further call."""

MOST: Final = 64
"""The most elements of a burst."""

PREFETCH_PER_CALL: Final = 4 * MOST
"""Elements in flight for each call at once, if nothing else is said: while one burst runs, another
waits to be submitted, and the results of two for their turn."""

_ELSEWHERE: Final = getattr(futures, "InterpreterPoolExecutor", ())
"""Its threads share nothing with those here, though it is a pool of threads by its class."""


class MapBlocking(MapAsync):
    """``fn(element)`` on ``executor`` for each element, up to ``concurrency`` calls at once."""

    operator = "map_blocking"

    def __init__(
        self,
        fn: Callable[[Any], Any],
        executor: Executor | None,
        *,
        concurrency: int | None,
        ordered: bool,
        prefetch: int | None,
    ) -> None:
        check_sync("map_blocking", "fn", fn, "; make the calls with map_async")
        if executor is not None and not isinstance(executor, Executor):
            raise TypeError(
                "map_blocking(executor): executor must be a concurrent.futures.Executor or None, "
                f"got {type(executor).__name__}"
            )
        if concurrency is None:
            concurrency = os.cpu_count() or 1
        super().__init__(fn, concurrency=concurrency, ordered=ordered, prefetch=prefetch)
        self.fn = fn
        self.is_here = executor is None or (
            isinstance(executor, ThreadPoolExecutor) and not isinstance(executor, _ELSEWHERE)
        )
        self.executor = executor
        self.where = "shared threads" if executor is None else type(executor).__name__

    def prefetch_per_call(self) -> int:
        """Return that of four bursts, whether or not there is an order."""
        return PREFETCH_PER_CALL

    def resource(self) -> Resource:
        """Return what results are delivered on: the loop that runs here, or a thread."""
        if running_loop() is not None:
            return super().resource()
        return resource(None, "rstreams-fast-map-blocking")

    def window(self, custody: Custody | None, enter: Work, on_ready: Work) -> Any:  # noqa: ARG002
        """Return the calls. In a turn of the resource."""
        return _Calls(self, custody, enter)


class _Burst:
    """What is submitted together, and then its results."""

    # The results of calls are kept here, which the drain's thread made: without a GIL, an object
    # of a worker's thread that is idle is not freed until that works again.
    __slots__ = ("elements", "error", "future", "is_over", "made", "results", "seconds")

    def __init__(self, elements: list[Any]) -> None:
        self.elements = elements
        self.future: Future[Any] | None = None
        self.made = list[Any]()  # results, for the drain to see
        self.error: BaseException | None = None  # of the call after them
        self.seconds = 0.0
        self.is_over = False  # seen: ``results`` are all before those of the next one
        self.results = list[Any]()  # to be taken


class _Calls:
    """What a ``CallWindow`` is, for the holder of the drain; ``permits`` are for any thread."""

    running = 0  # what still runs when all is over is nobody's

    def __init__(self, options: MapBlocking, custody: Custody | None, enter: Work) -> None:
        self._options = options
        self._custody = custody
        self._enter: Work | None = enter
        self._size = 1  # of the next burst
        self._bursts = set[_Burst]()  # that are not over
        self._left = deque[_Burst]()  # to be submitted before others
        self._results = deque[_Burst]()  # to be taken from; if ordered, all from the first on
        self._ended = deque[_Burst]()  # by the threads that made the calls
        self._held = 0  # elements called for whose results are not taken
        self.permits = DemandCounter()  # cancelled: no call starts any more
        self.failure: tuple[Any, BaseException] | None = None

    @property
    def pending(self) -> int:
        """How many calls, results and failures there are."""
        return self._held + (self.failure is not None)

    def submit_from(self, queue: SpscRing[Any], most: int) -> int:
        """Start calls for elements in ``queue`` while there are places; 0 if nothing is new."""
        self._see()
        options = self._options
        count = 0
        while (
            count < most
            and len(self._bursts) < options.concurrency
            and self.permits.value >= 0
            and self.failure is None
        ):
            if self._left:
                burst = self._left.popleft()
            else:
                # Each place is to have its share.
                share = len(queue) // options.concurrency
                burst = _Burst(queue.poll_many(min(self._size, max(share, 1))))
                if not burst.elements:
                    break
                count += len(burst.elements)
                if options.ordered:
                    self._results.append(burst)
            self._submit(burst)
        self._held += count
        return count or int(self.failure is not None)  # which is to be acted on

    def _submit(self, burst: _Burst) -> None:
        custody = self._custody
        if custody is not None:
            burst.elements = [each for each in burst.elements if custody.claim(each)]
        self._bursts.add(burst)
        held = [burst]  # to be taken by who answers for it
        try:
            burst.future = self._submit_held(held)
        except Exception as refused:
            self._not_made(held, refused)

    def _submit_held(self, held: list[_Burst]) -> Future[Any] | None:
        options = self._options
        executor = options.executor
        future: Future[Any]
        if executor is not None and not options.is_here:
            future = submit_of(executor)(_call, options.fn, None, held[0].elements.copy())
        else:
            # As ``subscribe`` was called in; a context is entered by one thread at a time.
            make = partial(copy_context().run, self._make, held)
            if executor is None:
                shared_threads().execute(make, partial(self._not_made, held))
                return None
            future = submit_of(executor)(make)
        future.add_done_callback(partial(self._done, held))
        return future

    def _make(self, held: list[_Burst]) -> None:
        burst = taken(held)
        if burst is not None:
            self._end(burst, _call(self._options.fn, self.permits, burst.elements.copy()))
            del burst  # the frames of an error refer to this one

    def _done(self, held: list[_Burst], future: Future[Any]) -> None:
        if future.cancelled():
            self._not_made(held, cancelled_by_executor())
        elif (raised := future.exception()) is not None:
            self._not_made(held, raised)
        elif (burst := taken(held)) is not None:  # else it was made here
            self._end(burst, future.result())

    def _not_made(self, held: list[_Burst], error: BaseException) -> None:
        # A pool that fails to start one more thread keeps the work, for a thread that it has.
        burst = taken(held)
        if burst is not None:
            self._end(burst, [[], error, 0.0])

    def _end(self, burst: _Burst, outcome: list[Any]) -> None:
        burst.made, burst.error, burst.seconds = outcome
        outcome.clear()  # the frames of an error refer to it
        if self._custody is not None:
            _account(self._custody, burst)
        ended = self._ended  # before: elements after ``cancel`` must not stay in the new one
        enter = self._enter
        if enter is not None:
            ended.append(burst)
            enter()
        elif burst.error is not None and not isinstance(burst.error, WorkDroppedError):
            report_late(burst.error)  # else the call was cancelled

    def _see(self) -> None:
        ended = self._ended
        while ended:
            burst = ended.popleft()
            self._bursts.discard(burst)
            burst.results = burst.made
            count = len(burst.results)
            left, burst.elements = burst.elements[count:], []
            ordered = self._options.ordered
            if not ordered:
                self._results.append(burst)
            burst.is_over = burst.error is None or not ordered
            if burst.error is not None:
                self.failure = self.failure or (None, burst.error)
                continue
            if burst.seconds:
                self._size = max(1, min(int(AIM / burst.seconds * count), MOST))
            if left:
                self._call_later(burst, left)

    def _call_later(self, burst: _Burst, left: list[Any]) -> None:
        size = self._size
        bursts = [_Burst(left[at : at + size]) for at in range(0, len(left), size)]
        self._left.extendleft(reversed(bursts))
        if self._options.ordered:
            at = self._results.index(burst) + 1
            for each in reversed(bursts):
                self._results.insert(at, each)

    def _take(self, most: int) -> list[Any]:
        """Take up to ``most`` results that come next, all of one burst."""
        bursts = self._results
        while bursts:
            results = bursts[0].results
            if results:
                taken = results[:most]
                del results[:most]
                self._held -= len(taken)
                return taken
            if not bursts[0].is_over:
                break
            bursts.popleft()
        return []

    def take(self, most: int) -> list[Any]:
        """Take up to ``most`` results."""
        self._see()
        taken = list[Any]()
        while len(taken) < most and (more := self._take(most - len(taken))):
            taken += more
        return taken

    def take_into(self, ring: SpscRing[Any], most: int) -> int:
        """Put up to ``most`` results in ``ring``, up to one that is no element."""
        self._see()
        count = 0
        while count < most and (results := self._take(most - count)):
            if is_none := results[-1] is None:  # and no other is: a burst ends there
                self._results[0].results.append(results.pop())
                self._held += 1
            count += ring.offer_many(results)
            if is_none:
                break
        return count

    def cancel(self) -> None:
        """Let no call begin, and drop the results of those that run."""
        self._enter = None
        for burst in self._bursts:
            if (future := burst.future) is not None:
                future.cancel()
        failed = [burst.error for burst in self._ended if burst.error is not None]
        self._bursts, self._ended = set(), deque()
        self._left, self._results = deque(), deque()
        for error in failed:
            report_late(error)


def _call(
    fn: Callable[[Any], Any], permits: DemandCounter | None, elements: list[Any]
) -> list[Any]:
    # Of this module, so that processes can import it.
    results: list[Any] = []
    outcome: list[Any] = [results, None, 0.0]
    begun, seconds = perf_counter(), 0.0
    try:
        for element in elements:
            if seconds > SECONDS or (permits is not None and permits.value < 0):
                break
            results.append(result := fn(element))
            seconds = perf_counter() - begun
            if result is None:
                break
    except BaseException as raised:
        error = raised
        if isinstance(raised, StopIteration):  # which would end an iteration
            error = RuntimeError(f"{describe_callable(fn)} raised StopIteration")
            error.__cause__ = raised
        if permits is None:
            error.add_note(traceback.format_exc())  # the traceback stays in that process
        outcome[1] = error
        elements.clear()
        # The traceback has this frame.
        element = result = results = error = None  # type: ignore[assignment]
    outcome[2] = seconds
    return outcome


def _account(custody: Custody, burst: _Burst) -> None:
    """Answer for the results of calls, and for the elements for which none was made."""
    made = len(burst.made)
    for element, result in zip(burst.elements, burst.made, strict=False):
        if result is None:
            custody.release(element)
        else:
            custody.enter(result)
    if burst.error is not None:
        for element in burst.elements[made : made + 1]:
            custody.release(element)
        made += 1
    for element in burst.elements[made:]:
        custody.enter(element)
