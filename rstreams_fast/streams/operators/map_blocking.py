"""``map_blocking``: calls a plain function on a pool of threads or processes.

The operator uses the subscription of ``map_async``. So bounds, order and errors are the same, but
a pool makes the calls. If the subscribing thread runs no event loop, the results are delivered on a
plain thread: on an event loop, the delivery would take twice the processor time.

A submission to a pool takes longer than a short call. So each submission is a *burst*: calls for
several elements, one after the other. After ``MAX_BURST_SECONDS`` a burst makes no more calls, and
the remaining elements are submitted again. A result is delivered only after the end of its burst.
So it waits at most for ``MAX_BURST_SECONDS`` and the time of one call.
"""

from __future__ import annotations

import contextlib
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

from rstreams_fast._checks import add_note, check_sync, describe_callable
from rstreams_fast.core import DemandCounter, SpscRing
from rstreams_fast.runtime.executors import (
    Resource,
    Work,
    WorkDroppedError,
    cancelled_by_executor,
    nonblocking_submit,
    resource,
    take_held,
)
from rstreams_fast.runtime.parking import running_loop
from rstreams_fast.runtime.shared_threads import shared_threads
from rstreams_fast.streams.engine.custody import Custody
from rstreams_fast.streams.engine.defaults import BURST
from rstreams_fast.streams.engine.signals import report_late
from rstreams_fast.streams.operators.map_async import MapAsync

__all__ = ["MapBlocking"]

TARGET_SECONDS: Final = 0.003
"""How many seconds a burst (several calls in one submission to the pool) should take."""

MAX_BURST_SECONDS: Final = 0.004
"""After this many seconds a burst (one submission to the pool) makes no more calls."""

MAX_BURST: Final = 64
"""The maximum number of calls in a burst (one submission to the pool)."""

PREFETCH_PER_CALL: Final = 4 * MAX_BURST
"""``prefetch`` is by default this number times ``concurrency``.

So there is room for four bursts (submissions to the pool) for each concurrent call: one runs, one
waits for submission, and the results of two wait for delivery."""

_INTERPRETER_POOL: Final = getattr(futures, "InterpreterPoolExecutor", ())
"""The class ``InterpreterPoolExecutor``: its threads share no objects with this interpreter.

CPython has this class since 3.14. In older versions ``_INTERPRETER_POOL`` is an empty tuple."""


class MapBlocking(MapAsync):
    """Calls ``fn(element)`` on ``executor``: at most ``concurrency`` calls run at a time."""

    operator = "map_blocking"
    first_calls = BURST  # a submission to the pool is quick

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
        self.in_this_interpreter = executor is None or (
            isinstance(executor, ThreadPoolExecutor) and not isinstance(executor, _INTERPRETER_POOL)
        )
        self.executor = executor
        self.where = "shared threads" if executor is None else type(executor).__name__

    def prefetch_per_call(self) -> int:
        return PREFETCH_PER_CALL

    def resource(self) -> Resource:
        """Return the ``Resource`` on which results are delivered.

        If the calling thread runs an event loop, this loop is the resource. Otherwise the resource
        is a new thread.
        """
        if running_loop() is not None:
            return super().resource()
        return resource(None, "rstreams-fast-map-blocking")

    def window(self, custody: Custody | None, enter: Work, on_ready: Work) -> Any:  # noqa: ARG002
        return _Calls(self, custody, enter)


class _Burst:
    """The elements of one submission to the pool, and the results of the calls."""

    # The delivering thread makes this object, and the pool's thread stores the results in it. An
    # object that the pool's thread made would live too long: Python without a GIL does not free it
    # while the pool's thread is idle.
    __slots__ = ("elements", "error", "future", "held", "is_over", "made", "results", "seconds")

    def __init__(self, elements: list[Any]) -> None:
        self.elements = elements
        # ``held`` has one list for each element: ``[element]`` if the element was in the custody
        # (the record of undelivered elements, for ``on_discard``), otherwise ``[]``.
        self.held = list[list[Any]]()
        self.future: Future[Any] | None = None
        # ``made``: the results that the pool's thread has stored. ``results``: the results that the
        # delivering thread has taken from ``made`` and has not delivered yet.
        self.made = list[Any]()
        self.error: BaseException | None = None  # the error that stopped the calls, or None
        self.seconds = 0.0
        # ``is_over``: whether the calls for these elements have ended. Then the results of the next
        # ``_Burst`` may be delivered after ``results``. But if results are ordered and a call has
        # failed, ``is_over`` stays false: no result may be delivered after the failed call.
        self.is_over = False
        self.results = list[Any]()


class _Calls:
    """Makes the calls on the pool, and holds their results until the delivery.

    Has the methods of ``CallWindow``, which makes the calls of ``map_async``. Only the thread that
    delivers results may call them. But any thread may call ``permits.cancel()``, after which no
    call starts, and read ``pending``, which counts elements without a delivered result.
    """

    # ``running``: how many calls an ended stream waits for. It waits for no call on the pool.
    running = 0

    def __init__(self, options: MapBlocking, custody: Custody | None, enter: Work) -> None:
        self._options = options
        self._custody = custody
        self._enter: Work | None = enter
        # A burst is one submission of several calls to the pool.
        # ``_size``: the maximum number of elements in a new burst.
        # ``_bursts``: the bursts that the pool has got, and whose end is not handled yet.
        # ``_left``: bursts to submit next, with elements for which an earlier burst had no time.
        # ``_results``: bursts whose results must be delivered, in this order. If results are
        # ordered, a burst is added before its calls begin, otherwise after their end.
        # ``_ended``: bursts whose calls have ended, until the delivering thread handles the end.
        self._size = 1
        self._bursts = set[_Burst]()
        self._left = deque[_Burst]()
        self._results = deque[_Burst]()
        self._ended = deque[_Burst]()
        self._held = 0
        self.permits = DemandCounter()  # after permits.cancel() no call starts
        self.failure: tuple[Any, BaseException] | None = None

    @property
    def pending(self) -> int:
        """Return the number of submitted elements whose results are not delivered yet.

        If a call has failed, add 1: the stream completes only at 0, but it must signal the failure.
        """
        return self._held + (self.failure is not None)

    def submit_from(self, queue: SpscRing[Any], most: int) -> int:
        """Submit elements of ``queue`` to the pool, and return their number.

        Stop at ``most`` elements; the last submission may exceed this number. If the result would
        be 0, but a call has failed, return 1: then the caller goes on, and signals the failure.
        """
        self._collect_ended()
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
                # If there are only few elements, divide them equally among ``concurrency``
                # submissions: otherwise the first submission would take all elements.
                share = len(queue) // options.concurrency
                burst = _Burst(queue.poll_many(min(self._size, max(share, 1))))
                if not burst.elements:
                    break
                count += len(burst.elements)
                if options.ordered:
                    self._results.append(burst)
            self._submit(burst)
        self._held += count
        return count or int(self.failure is not None)

    def _submit(self, burst: _Burst) -> None:
        custody = self._custody
        if custody is not None:
            claimed = [(each, custody.claim(each)) for each in burst.elements]
            burst.elements = [each for each, held in claimed if held is not None]
            burst.held = [held for _each, held in claimed if held is not None]
            del claimed
        self._bursts.add(burst)
        # Two threads may want to call ``_end``: the pool's thread, which makes the calls, and the
        # thread that finds that the pool drops them. Only the thread that pops ``burst`` does so.
        held = [burst]
        try:
            burst.future = self._submit_held(held)
        except Exception as refused:
            self._end_unmade(held, refused)
            self._collect_ended()  # set ``failure``, so that ``submit_from`` submits no more

    def _submit_held(self, held: list[_Burst]) -> Future[Any] | None:
        options = self._options
        executor = options.executor
        future: Future[Any]
        if executor is not None and not options.in_this_interpreter:
            future = nonblocking_submit(executor)(_call, options.fn, None, held[0].elements.copy())
        else:
            # Copy the ``contextvars`` context for each submission: two threads cannot run code in
            # the same context at the same time.
            make = partial(copy_context().run, self._make, held)
            if executor is None:
                shared_threads().execute(make, partial(self._end_unmade, held))
                return None
            future = nonblocking_submit(executor)(make)
        future.add_done_callback(partial(self._on_done, held))
        return future

    def _make(self, held: list[_Burst]) -> None:
        burst = take_held(held)
        if burst is not None:
            self._end(burst, _call(self._options.fn, self.permits, burst.elements.copy()))
            del burst  # drop the elements: an error's traceback would keep them alive (§3.13)

    def _on_done(self, held: list[_Burst], future: Future[Any]) -> None:
        if future.cancelled():
            self._end_unmade(held, cancelled_by_executor())
        elif (raised := future.exception()) is not None:
            self._end_unmade(held, raised)
        # If ``held`` still contains the burst, another process or interpreter has made the calls.
        # In this interpreter, ``_make`` makes the calls: it takes the burst out of ``held``, and
        # calls ``_end`` itself.
        elif (burst := take_held(held)) is not None:
            self._end(burst, future.result())

    def _end_unmade(self, held: list[_Burst], error: BaseException) -> None:
        # ``held`` can be empty although ``submit`` raised ``error``: the pool could not start a new
        # thread, but an older thread of the pool runs ``_make``, which has taken the burst.
        burst = take_held(held)
        if burst is not None:
            self._end(burst, [[], error, 0.0])

    def _end(self, burst: _Burst, outcome: list[Any]) -> None:
        burst.made, burst.error, burst.seconds = outcome
        outcome.clear()  # an error's traceback may keep this list alive, so empty it
        if self._custody is not None:
            _register_outcome(self._custody, burst)
        ended, enter = self._ended, self._enter
        ended.append(burst)
        if enter is not None:
            enter()
        # ``cancel()`` sets ``_enter`` to None, and reports the errors of the bursts in ``ended``.
        # If it did so before this burst was added, nobody else would report this burst's error.
        if self._enter is None:
            _report_errors(ended)

    def _collect_ended(self) -> None:
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
                if self.failure is None:
                    self.failure = None, burst.error
                elif burst.error is not self.failure[1]:
                    _report_error(burst.error)
                continue
            if burst.seconds:
                self._size = max(1, min(int(TARGET_SECONDS / burst.seconds * count), MAX_BURST))
            if left:
                self._queue_rest(burst, left)

    def _queue_rest(self, burst: _Burst, left: list[Any]) -> None:
        size = self._size
        bursts = [_Burst(left[at : at + size]) for at in range(0, len(left), size)]
        self._left.extendleft(reversed(bursts))
        if self._options.ordered:
            at = self._results.index(burst) + 1
            for each in reversed(bursts):
                self._results.insert(at, each)

    def _take(self, most: int) -> list[Any]:
        """Remove and return the next results: at most ``most``, all from one submission."""
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
        self._collect_ended()
        taken = list[Any]()
        while len(taken) < most and (more := self._take(most - len(taken))):
            taken += more
        return taken

    def take_into(self, ring: SpscRing[Any], most: int) -> int:
        """Put up to ``most`` results in ``ring``, and return the number of these results.

        Stop before a result that is ``None``: for this result the caller must signal an error.
        """
        self._collect_ended()
        count = 0
        while count < most and (results := self._take(most - count)):
            # Only the last result of a burst can be None: ``_call`` stops after such a result.
            if is_none := results[-1] is None:
                self._results[0].results.append(results.pop())
                self._held += 1
            count += ring.offer_many(results)
            if is_none:
                break
        return count

    def cancel(self) -> None:
        """Cancel the submissions that the pool has not begun. Drop all results."""
        self._enter = None
        for burst in self._bursts:
            if (future := burst.future) is not None:
                future.cancel()
        ended, self._ended = self._ended, deque()
        self._bursts, self._left, self._results = set(), deque(), deque()
        _report_errors(ended)


def _report_errors(ended: deque[_Burst]) -> None:
    """Empty ``ended``. Pass the bursts' errors to ``on_dropped_error``: the stream has ended."""
    with contextlib.suppress(IndexError):  # another thread may empty ``ended`` at the same time
        while True:
            error = ended.popleft().error
            if error is not None:
                _report_error(error)


def _report_error(error: BaseException) -> None:
    # Do not report a WorkDroppedError, which only says that a call was cancelled.
    if not isinstance(error, WorkDroppedError):
        report_late(error)


def _call(
    fn: Callable[[Any], Any], permits: DemandCounter | None, elements: list[Any]
) -> list[Any]:
    # This is a module-level function, so that a process pool can pickle it.
    results: list[Any] = []
    outcome: list[Any] = [results, None, 0.0]
    begun, seconds = perf_counter(), 0.0
    try:
        for element in elements:
            if seconds > MAX_BURST_SECONDS or (permits is not None and permits.value < 0):
                break
            results.append(result := fn(element))
            seconds = perf_counter() - begun
            if result is None:
                break
    except BaseException as raised:
        error = raised
        if isinstance(raised, StopIteration):  # a StopIteration would end a loop of the caller
            error = RuntimeError(f"{describe_callable(fn)} raised StopIteration")
            error.__cause__ = raised
        if permits is None:
            add_note(error, traceback.format_exc())  # pickling the error loses its traceback
        outcome[1] = error
        elements.clear()
        # Clear the variables: the error's traceback keeps this frame and its variables in memory.
        element = result = results = error = None  # type: ignore[assignment]
    outcome[2] = seconds
    return outcome


def _register_outcome(custody: Custody, burst: _Burst) -> None:
    """Update ``custody``, the record of undelivered elements, after the calls of ``burst``.

    Add each result, and add again each element for which no call was made. If the call for an
    element has failed or returned ``None``, pass the element to the hook of ``on_discard``. Ignore
    elements that ``custody`` did not hold before.
    """
    held, burst.held = burst.held, []
    made = burst.made + [None] * (burst.error is not None)
    for elements, result in zip(held, made, strict=False):
        custody.enter(result)  # enter() ignores None
        for element in elements if result is None else ():
            custody.call_hook(element)
    for elements in held[len(made) :]:
        for element in elements:
            custody.enter(element)
