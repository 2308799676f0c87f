"""Queues between threads with the standard library's interface, in C, and a bounded thread pool.

``Queue``, ``LifoQueue``, ``PriorityQueue`` and ``SimpleQueue`` replace the classes of the module
``queue``. They have Python 3.13's ``shutdown`` on every version of Python. On the backends ``cffi``
and ``python`` they use the classes of the standard library.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, Full
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from rstreams_fast._checks import check_capacity
from rstreams_fast.core import backend
from rstreams_fast.core._common import check_threads
from rstreams_fast.runtime.parking import running_loop

try:
    # No backend helps: the queues of ``python`` need attributes that gevent's queues do not have.
    check_threads("a queue of rstreams_fast.queues", "the queues of gevent or eventlet")
except RuntimeError as refused:
    raise ImportError(str(refused)) from None

if TYPE_CHECKING or backend != "c":
    from rstreams_fast.core._spec.queues import (
        LifoQueue,
        PriorityQueue,
        Queue,
        ShutDown,
        SimpleQueue,
    )
else:
    from rstreams_fast.core._cython.queues import (
        LifoQueue,
        PriorityQueue,
        Queue,
        ShutDown,
        SimpleQueue,
    )

__all__ = [
    "BoundedExecutor",
    "Empty",
    "Full",
    "LifoQueue",
    "PriorityQueue",
    "Queue",
    "ShutDown",
    "SimpleQueue",
]

P = ParamSpec("P")
T = TypeVar("T")


class _Submitting(threading.local):
    """The call that this thread submits.

    A place is a list: it has one element while it is taken, and none afterwards. ``pop`` succeeds
    once, so a place is freed only once.
    """

    place: list[None] | None = None  # of the call; ``None`` within ``submit_at_once``
    queued: list[None] | None = None  # the place of the last call that was put into the queue


class _WaitingCalls(SimpleQueue[Any]):
    """The calls that wait for a thread of the pool.

    Each call of ``submit`` has a place in ``places``, which is freed when a thread takes the call
    out. Calls of ``submit_at_once`` have no place.
    """

    def __init__(self, places: Queue[None]) -> None:
        self._places = places
        self.submitting = _Submitting()

    def put(self, call: Any, block: bool = True, timeout: float | None = None) -> None:
        # ThreadPoolExecutor puts None in to wake a thread. None is no call, and takes no place.
        place = None if call is None else self.submitting.place
        super().put((call, place), block, timeout)
        self.submitting.queued = place

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        call, place = super().get(block, timeout)
        if place is not None:
            self.free(place)
        return call

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def free(self, place: list[None]) -> None:
        # IndexError: ``place`` was not taken, or is free already.
        with contextlib.suppress(IndexError, Empty, ShutDown):
            place.pop()
            self._places.get_nowait()


class BoundedExecutor(ThreadPoolExecutor):
    """A ``ThreadPoolExecutor`` whose ``submit`` waits while ``max_queue_size`` calls wait.

    Running calls do not count. Ctrl-C ends a waiting ``submit``, and nothing is submitted.
    ``shutdown`` wakes the waiting threads: their ``submit`` raises ``RuntimeError``, and so does
    every later ``submit``. While the queue is full, ``submit`` raises ``RuntimeError`` at once if
    waiting could last for ever: in a thread of the pool itself, and in a thread that runs an event
    loop, so also in ``loop.run_in_executor``. On an event loop, an
    ``asyncio.Semaphore(max_queue_size)`` around each call can bound the calls instead. Streams
    never wait in ``submit``: see ``submit_at_once``.

    Args:
        max_workers: The most threads, as for ``ThreadPoolExecutor``.
        *args: Further arguments of ``ThreadPoolExecutor``.
        max_queue_size: The most calls that wait for a thread, 1 or more.
        **kwargs: Further arguments of ``ThreadPoolExecutor``.

    Raises:
        TypeError: ``max_queue_size`` is not an ``int``.
        ValueError: ``max_queue_size`` is less than 1.
    """

    def __init__(
        self, max_workers: int | None = None, *args: Any, max_queue_size: int, **kwargs: Any
    ) -> None:
        places = check_capacity("max_queue_size", max_queue_size)
        super().__init__(max_workers, *args, **kwargs)
        self._places: Queue[None] = Queue(places)
        self._work_queue: Any = _WaitingCalls(self._places)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a call of ``fn`` to the pool. First wait while ``max_queue_size`` calls wait.

        Args:
            fn: The function.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            The future of the call.

        Raises:
            RuntimeError: The pool is shut down, or waiting here could last for ever.
        """
        submitting = self._work_queue.submitting
        place: list[None] = []
        outer, put = submitting.place, self._places.put
        try:
            # On the backend ``c``, ``extend`` runs no Python code between taking a place and
            # storing it in ``place``. So Ctrl-C cannot interrupt it there.
            try:
                place.extend(map(put, (None,), (False,)))
            except Full:
                self._refuse_to_wait_here()
                place.extend(map(put, (None,)))
            submitting.place = place
            return super().submit(fn, *args, **kwargs)
        except ShutDown:
            raise RuntimeError("cannot schedule new futures after shutdown") from None
        except BaseException:
            if submitting.queued is not place:
                self._work_queue.free(place)
            raise
        finally:
            submitting.place = outer  # the place of a ``submit`` that a signal handler interrupted

    def _refuse_to_wait_here(self) -> None:
        full = f"{self._places.maxsize} calls wait already, and "
        if threading.current_thread() in self._threads:
            raise RuntimeError(
                full + "a thread of the pool itself cannot wait until there are fewer"
            ) from None
        if running_loop() is not None:
            raise RuntimeError(
                full + "to wait here would block the event loop, which they may need; bound the "
                f"calls with an asyncio.Semaphore({self._places.maxsize}), or submit in another "
                "thread: future = await asyncio.to_thread(pool.submit, fn)"
            ) from None

    def submit_at_once(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a call of ``fn`` to the pool. Never wait, even if the queue is full.

        Only for callers that bound their calls themselves: each ``publish_on``, ``subscribe_on``,
        ``interval`` or ``AsyncSubscriber`` on this pool has one or two such calls at a time, and
        ``map_blocking`` has up to ``concurrency``.

        Args:
            fn: The function.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            The future of the call.
        """
        return super().submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down like the standard library's pool; a waiting ``submit`` raises ``RuntimeError``.

        Args:
            wait: Whether to wait until all threads have ended.
            cancel_futures: Whether to cancel the calls that wait for a thread.
        """
        self._places.shutdown()
        super().shutdown(wait, cancel_futures=cancel_futures)
