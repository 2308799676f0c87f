"""``map_blocking``: a plain function on a pool of threads or processes, several calls at a time.

``map_async`` with a window of calls that a pool makes: its bounds, its order and its errors hold
here. A call that ends enters the drain, on a thread of its own: an event loop would take as much of
a processor again as the rest, which the calls need.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from rstreams_fast._checks import check_sync, describe_callable
from rstreams_fast.core import DemandCounter, SpscRing
from rstreams_fast.runtime.executors import Resource, Work, resource
from rstreams_fast.runtime.parking import running_loop
from rstreams_fast.runtime.shared_threads import shared_threads
from rstreams_fast.streams.engine.custody import Custody
from rstreams_fast.streams.operators.map_async import MapAsync

__all__ = ["MapBlocking"]

_Submit = Callable[[Callable[[Any], Any], Any], "Future[Any]"]


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
        self.call = partial(_call, fn)
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
    """A call; ``element`` is kept where somebody answers for it."""

    __slots__ = ("element", "error", "future", "over", "result")

    def __init__(self, element: Any) -> None:
        self.element = element
        self.future: Future[Any] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.over = False  # which the drain has seen


class _Calls:
    """What a ``CallWindow`` is, for the holder of the drain; ``permits`` are for any thread."""

    running = 0  # what still runs when all is over is nobody's

    def __init__(self, options: MapBlocking, custody: Custody | None, enter: Work) -> None:
        self._options = options
        self._custody = custody
        self._enter: Work | None = enter
        self._made: set[_One] = set()  # calls that are not over
        self._results: deque[_One] = deque()  # to be taken; if ordered, calls from the first on
        self._ended: deque[_One] = deque()  # by the threads that made them
        self.permits = DemandCounter()  # cancelled: no call starts any more
        self.failure: tuple[Any, BaseException] | None = None

    @property
    def pending(self) -> int:
        """How many calls, results and failures there are."""
        running = 0 if self._options.ordered else len(self._made)
        return len(self._results) + running + (self.failure is not None)

    def submit_from(self, queue: SpscRing[Any], most: int) -> int:
        """Start calls for elements in ``queue`` while there are places; 0 if nothing is new."""
        self._see()
        options, custody = self._options, self._custody
        count = 0
        while (
            count < most
            and len(self._made) < options.concurrency
            and self.permits.value >= 0
            and self.failure is None
            and (element := queue.poll()) is not None
        ):
            if custody is not None and not custody.claim(element):
                break
            count += 1
            one = _One(None if custody is None else element)
            self._made.add(one)
            if options.ordered:
                self._results.append(one)
            try:
                one.future = future = options.submit(options.call, element)
            except Exception as refused:
                self._end(one, None, refused)
            else:
                future.add_done_callback(partial(self._done, one))
        element = None
        return count or int(self.failure is not None)  # which is to be acted on

    def _done(self, one: _One, future: Future[Any]) -> None:
        if future.cancelled():
            self._end(one, None, asyncio.CancelledError())
        else:
            error = future.exception()
            self._end(one, None if error is not None else future.result(), error)

    def _end(self, one: _One, result: Any, error: BaseException | None) -> None:
        custody = self._custody
        if custody is not None:
            if result is None:
                custody.release(one.element)
            else:
                custody.enter(result)
        one.result, one.error = result, error
        one.element = one.future = None
        enter = self._enter
        if enter is not None:
            self._ended.append(one)
            enter()

    def _see(self) -> None:
        ended = self._ended
        while ended:
            one = ended.popleft()
            self._made.discard(one)
            if one.error is not None:
                self.failure = self.failure or (None, one.error)
                continue
            one.over = True
            if not self._options.ordered:
                self._results.append(one)

    def take(self, most: int) -> list[Any]:
        """Take up to ``most`` results."""
        self._see()
        results, taken = self._results, list[Any]()
        while results and results[0].over and len(taken) < most:
            taken.append(results.popleft().result)
        return taken

    def take_into(self, ring: SpscRing[Any], most: int) -> int:
        """Put up to ``most`` results in ``ring``, up to one that is no element."""
        self._see()
        results, count = self._results, 0
        while results and results[0].over and count < most and results[0].result is not None:
            ring.offer(results.popleft().result)
            count += 1
        return count

    def cancel(self) -> None:
        """Let no call begin, and drop what comes of those that run."""
        self._enter = None
        for one in self._made:
            if (future := one.future) is not None:
                future.cancel()
        self._made, self._results, self._ended = set(), deque(), deque()


def _call(fn: Callable[[Any], Any], element: Any) -> Any:
    # Of this module, so that processes can import it.
    try:
        return fn(element)
    except StopIteration as stop:  # no future can carry it
        raise RuntimeError(f"{describe_callable(fn)} raised StopIteration") from stop


def _submit_shared(work: Callable[[Any], Any], element: Any) -> Future[Any]:
    future: Future[Any] = Future()

    def run() -> None:
        if future.set_running_or_notify_cancel():
            try:
                result = work(element)
            except BaseException as raised:
                future.set_exception(raised)
            else:
                future.set_result(result)

    shared_threads().execute(run, future.set_exception)
    return future
