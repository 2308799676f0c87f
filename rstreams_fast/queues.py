"""Queues between threads, written in C with the interface of ``queue``, and a bounded thread pool.

``Queue``, ``LifoQueue``, ``PriorityQueue`` and ``SimpleQueue`` can replace the classes of the
module ``queue``. The first three have the method ``shutdown`` on every version of Python; ``queue``
has this method from Python 3.13 on. The backends ``cffi`` and ``python`` use code of ``queue``.
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
    # Refuse gevent and eventlet on every backend. Even the backend ``python`` needs attributes of
    # the standard library's queues that gevent's queues do not have.
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
    """Describes, for each thread, the call that the thread is submitting to the pool.

    Each queued call takes one of ``max_queue_size`` *places*. The list ``place`` has one item while
    the call has its place. To free the place, ``pop`` removes the item. A second ``pop`` raises an
    ``IndexError``, so no place is freed twice.
    """

    place: list[None] | None = None  # the place of the call; ``None`` within ``submit_at_once``
    queued: list[None] | None = None  # the place of the last call that was put into the queue


class _WaitingCalls(SimpleQueue[Any]):
    """The queue of calls that wait for a thread of the pool.

    Each call that ``submit`` adds takes one of the bounded ``places``. The place is freed when a
    thread takes the call out of the queue. Calls that ``submit_at_once`` adds take no place.
    """

    def __init__(self, places: Queue[None]) -> None:
        self._places = places
        self.submitting = _Submitting()

    def put(self, call: Any, block: bool = True, timeout: float | None = None) -> None:
        # ThreadPoolExecutor puts None into the queue to wake a thread. None takes no place.
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
        # ``pop`` raises an IndexError if ``place`` was never taken, or was freed before.
        with contextlib.suppress(IndexError, Empty, ShutDown):
            place.pop()
            self._places.get_nowait()


class BoundedExecutor(ThreadPoolExecutor):
    """A ``ThreadPoolExecutor`` with a bounded queue: ``submit`` waits while the queue is full.

    The queue holds at most ``max_queue_size`` calls. Running calls are not in the queue. Ctrl-C
    ends a waiting ``submit``, which then submits nothing. ``shutdown`` makes every waiting or later
    ``submit`` raise ``RuntimeError``.

    If the queue is full and waiting could last for ever, ``submit`` raises ``RuntimeError``
    immediately. This happens in a thread of the pool itself, and in a thread that runs an event
    loop, so also in ``loop.run_in_executor``. On an event loop, bound the calls by an
    ``asyncio.Semaphore(max_queue_size)`` instead. Streams never wait here: they call
    ``submit_at_once``.

    Args:
        max_workers: The largest number of threads, as for ``ThreadPoolExecutor``.
        *args: Further arguments of ``ThreadPoolExecutor``.
        max_queue_size: The largest number of calls that wait for a thread, 1 or more.
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
        """Submit a call of ``fn`` to the pool. If the queue of calls is full, wait for room.

        Args:
            fn: The function.
            *args: The positional arguments of ``fn``.
            **kwargs: The keyword arguments of ``fn``.

        Returns:
            The future of the call.

        Raises:
            RuntimeError: The pool is shut down, or waiting on this thread could last for ever.
        """
        submitting = self._work_queue.submitting
        place: list[None] = []
        outer, put = submitting.place, self._places.put
        try:
            # ``self._places.put`` takes a place, and ``place.extend`` records this. On the backend
            # ``c`` Ctrl-C cannot come between the two calls, and so cannot lose a place.
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
            # A signal handler may have called this ``submit`` while the same thread was in another
            # ``submit``. So restore the place of the other call.
            submitting.place = outer

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
        """Submit a call of ``fn`` to the pool. Never wait, even if the queue of calls is full.

        Only for callers that bound the number of their calls themselves, such as the operators of
        streams. Each ``publish_on``, ``subscribe_on``, ``interval`` or ``AsyncSubscriber`` on this
        pool has at most two calls at a time, and ``map_blocking`` has at most ``concurrency``.

        Args:
            fn: The function.
            *args: The positional arguments of ``fn``.
            **kwargs: The keyword arguments of ``fn``.

        Returns:
            The future of the call.
        """
        return super().submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Shut down the pool. Every ``submit`` that is waiting raises ``RuntimeError``.

        Args:
            wait: Whether to wait until all threads have ended.
            cancel_futures: Whether to cancel the calls that wait for a thread.
        """
        self._places.shutdown()
        super().shutdown(wait, cancel_futures=cancel_futures)
