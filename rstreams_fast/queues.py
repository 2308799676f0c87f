"""Queues between threads with the standard library's face, in C, and a pool with a bound.

``Queue``, ``LifoQueue``, ``PriorityQueue`` and ``SimpleQueue`` take the place of those of the
module ``queue``, with Python 3.13's ``shutdown`` on every version. The backends ``cffi`` and
``python`` have the standard library's own.
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

try:
    check_threads("a queue of rstreams_fast.queues")
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


class _Waiting(SimpleQueue[Any]):
    """The calls that wait for a thread; each that is taken out frees its place."""

    def __init__(self, places: Queue[None]) -> None:
        self._places = places

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        call = super().get(block, timeout)
        if call is not None:  # which only wakes a thread
            _free(self._places)
        return call

    def get_nowait(self) -> Any:
        return self.get(block=False)


def _free(places: Queue[None]) -> None:
    with contextlib.suppress(Empty, ShutDown):  # none is taken where a thread could not start
        places.get_nowait()


class BoundedExecutor(ThreadPoolExecutor):
    """A ``ThreadPoolExecutor`` whose ``submit`` waits while ``max_queue_size`` calls wait.

    Calls that run do not count. Ctrl-C in a ``submit`` that waits leaves it, and nothing is
    submitted. ``shutdown`` wakes those that wait: they raise ``RuntimeError``, as every later
    ``submit``. A thread of the pool itself never waits in ``submit``, for it could wait for
    itself: it gets a ``RuntimeError`` while the queue is full.
    """

    def __init__(
        self, max_workers: int | None = None, *args: Any, max_queue_size: int, **kwargs: Any
    ) -> None:
        places = check_capacity("max_queue_size", max_queue_size)
        super().__init__(max_workers, *args, **kwargs)
        self._places: Queue[None] = Queue(places)
        self._work_queue: Any = _Waiting(self._places)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have ``fn`` called by a thread of the pool; wait until there is room to wait."""
        try:
            self._places.put(None, block=threading.current_thread() not in self._threads)
        except Full:
            raise RuntimeError(
                f"{self._places.maxsize} calls wait already, and a thread of the pool itself "
                "cannot wait until there are fewer"
            ) from None
        except ShutDown:
            raise RuntimeError("cannot schedule new futures after shutdown") from None
        try:
            return super().submit(fn, *args, **kwargs)
        except BaseException:
            _free(self._places)
            raise

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As the standard library's; a ``submit`` that waits for room raises ``RuntimeError``."""
        self._places.shutdown()
        super().shutdown(wait, cancel_futures=cancel_futures)
