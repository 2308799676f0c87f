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

import asyncio
import os
import traceback
from collections import deque
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any, Final

from rstreams_fast._checks import check_sync, describe_callable
from rstreams_fast.core import DemandCounter, SpscRing
from rstreams_fast.runtime.executors import Resource, Work, resource
from rstreams_fast.runtime.parking import running_loop
from rstreams_fast.runtime.shared_threads import shared_threads
from rstreams_fast.streams.engine.custody import Custody
from rstreams_fast.streams.operators.map_async import MapAsync

__all__ = ["MapBlocking"]

SECONDS: Final = 0.004
"""After so long a burst makes no further call."""

MOST: Final = 64
"""The most elements of a burst."""

_ELSEWHERE: Final = getattr(futures, "InterpreterPoolExecutor", ())
"""Its threads share nothing with those here, though it is a pool of threads by its class."""

_Submit = Callable[[Callable[[list[Any]], list[Any]], list[Any]], "Future[list[Any]]"]


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
        self.submit: _Submit = _submit_shared if executor is None else executor.submit
        self.where = "shared threads" if executor is None else type(executor).__name__

    def resource(self) -> Resource:
        """Return what results are delivered on: the loop that runs here, or a thread."""
        if running_loop() is not None:
            return super().resource()
        return resource(None, "rstreams-fast-map-blocking")

    def window(self, custody: Custody | None, enter: Work, on_ready: Work) -> Any:  # noqa: ARG002
        """Return the calls. In a turn of the resource."""
        return _Calls(self, custody, enter)


class _One:
    """An element, and then the result of its call."""

    __slots__ = ("over", "value")

    def __init__(self, element: Any) -> None:
        self.value = element
        self.over = False  # which the drain has seen


class _Burst:
    """What is submitted together."""

    __slots__ = ("error", "future", "ones", "results", "seconds")

    def __init__(self, ones: list[_One]) -> None:
        self.ones = ones
        self.future: Future[list[Any]] | None = None
        self.results = list[Any]()  # of the first calls
        self.error: BaseException | None = None  # of the one after them
        self.seconds = 0.0


class _Calls:
    """What a ``CallWindow`` is, for the holder of the drain; ``permits`` are for any thread."""

    running = 0  # what still runs when all is over is nobody's

    def __init__(self, options: MapBlocking, custody: Custody | None, enter: Work) -> None:
        self._options = options
        self._custody = custody
        self._enter: Work | None = enter
        self._size = 1  # of the next burst
        self._bursts = set[_Burst]()  # that are not over
        self._called = 0  # elements whose calls are not over
        self._left = deque[_One]()  # by bursts whose time was over
        self._results = deque[_One]()  # to be taken; if ordered, elements from the first on
        self._ended = deque[_Burst]()  # by the threads that made the calls
        self.permits = DemandCounter()  # cancelled: no call starts any more
        self.failure: tuple[Any, BaseException] | None = None
        # In another process nobody can see whether they are cancelled.
        self._call = partial(_call, options.fn, self.permits if options.is_here else None)

    @property
    def pending(self) -> int:
        """How many calls, results and failures there are."""
        called = 0 if self._options.ordered else self._called
        return len(self._results) + called + (self.failure is not None)

    def submit_from(self, queue: SpscRing[Any], most: int) -> int:
        """Start calls for elements in ``queue`` while there are places; 0 if nothing is new."""
        self._see()
        options, left = self._options, self._left
        count = 0
        while (
            count < most
            and len(self._bursts) < options.concurrency
            and self.permits.value >= 0
            and self.failure is None
        ):
            # Each place is to have its share.
            share = (len(left) + len(queue)) // options.concurrency
            size = min(self._size, max(share, 1))
            ones = [left.popleft() for _ in range(min(size, len(left)))]
            if not ones:
                ones = [_One(element) for element in queue.poll_many(size)]
                count += len(ones)
                self._called += len(ones)
                if options.ordered:
                    self._results.extend(ones)
            if not ones:
                break
            self._submit(ones)
        return count or int(self.failure is not None)  # which is to be acted on

    def _submit(self, ones: list[_One]) -> None:
        custody = self._custody
        if custody is not None:
            ones = [one for one in ones if custody.claim(one.value)]
        burst = _Burst(ones)
        self._bursts.add(burst)
        try:
            future = self._options.submit(self._call, [one.value for one in ones])
        except Exception as refused:
            burst.error = refused
            self._end(burst)
        else:
            burst.future = future
            future.add_done_callback(partial(self._done, burst))

    def _done(self, burst: _Burst, future: Future[list[Any]]) -> None:
        burst.future = None
        if future.cancelled():
            burst.error = asyncio.CancelledError()
        elif (raised := future.exception()) is not None:
            burst.error = raised
        else:
            burst.results, burst.error, burst.seconds = outcome = future.result()
            outcome.clear()  # the frames of an error refer to the future
        self._end(burst)

    def _end(self, burst: _Burst) -> None:
        if self._custody is not None:
            _account(self._custody, burst)
        enter = self._enter
        if enter is not None:
            self._ended.append(burst)
            enter()

    def _see(self) -> None:
        ended = self._ended
        while ended:
            burst = ended.popleft()
            self._bursts.discard(burst)
            ones, burst.ones = burst.ones, []  # as the future refers to the burst
            made = ones[: len(burst.results)]
            self._called -= len(made)
            for one, result in zip(made, burst.results, strict=True):
                one.value, one.over = result, True
            if not self._options.ordered:
                self._results.extend(made)
            if burst.error is not None:
                self.failure = self.failure or (None, burst.error)
                continue
            self._left.extendleft(reversed(ones[len(made) :]))
            if burst.seconds > SECONDS:
                self._size = max(len(made), 1)
            elif burst.seconds < SECONDS / 2:
                self._size = min(max(self._size, 2 * len(made)), MOST)

    def take(self, most: int) -> list[Any]:
        """Take up to ``most`` results."""
        self._see()
        results, taken = self._results, list[Any]()
        while results and results[0].over and len(taken) < most:
            taken.append(results.popleft().value)
        return taken

    def take_into(self, ring: SpscRing[Any], most: int) -> int:
        """Put up to ``most`` results in ``ring``, up to one that is no element."""
        self._see()
        results, count = self._results, 0
        while results and results[0].over and count < most and results[0].value is not None:
            ring.offer(results.popleft().value)
            count += 1
        return count

    def cancel(self) -> None:
        """Let no call begin, and drop what comes of those that run."""
        self._enter = None
        for burst in self._bursts:
            if (future := burst.future) is not None:
                future.cancel()
        self._bursts, self._ended = set(), deque()
        self._left, self._results = deque(), deque()


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
            results.append(fn(element))
            seconds = perf_counter() - begun
    except BaseException as raised:
        error = raised
        if isinstance(raised, StopIteration):  # which would end an iteration
            error = RuntimeError(f"{describe_callable(fn)} raised StopIteration")
            error.__cause__ = raised
        if permits is None:
            error.add_note(traceback.format_exc())  # the traceback stays in that process
        outcome[1] = error
        elements.clear()
        element = results = error = None  # type: ignore[assignment]  # the traceback has this frame
    outcome[2] = seconds
    return outcome


def _account(custody: Custody, burst: _Burst) -> None:
    """Answer for the results of calls, and for the elements for which none was made."""
    made = len(burst.results)
    for one, result in zip(burst.ones, burst.results, strict=False):
        if result is None:
            custody.release(one.value)
        else:
            custody.enter(result)
    if burst.error is not None:
        for one in burst.ones[made : made + 1]:
            custody.release(one.value)
        made += 1
    for one in burst.ones[made:]:
        custody.enter(one.value)


def _submit_shared(
    work: Callable[[list[Any]], list[Any]], elements: list[Any]
) -> Future[list[Any]]:
    future: Future[list[Any]] = Future()

    def run() -> None:
        if future.set_running_or_notify_cancel():
            try:
                result = work(elements)
            except BaseException as raised:
                future.set_exception(raised)
            else:
                future.set_result(result)

    shared_threads().execute(run, future.set_exception)
    return future
