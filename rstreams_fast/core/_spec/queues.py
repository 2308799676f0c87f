"""The standard library's queues, with the ``shutdown`` of Python 3.13 on every version of Python.

These queues are the specification of the compiled queues. Backends without compiled queues use
these queues themselves.
"""

from __future__ import annotations

import queue
import sys
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

__all__ = ["LifoQueue", "PriorityQueue", "Queue", "ShutDown", "SimpleQueue", "add_conditions"]

T = TypeVar("T")
C = TypeVar("C", bound="SupportsRichComparison")

if sys.version_info >= (3, 13):
    from queue import LifoQueue, PriorityQueue, Queue, ShutDown
else:

    class ShutDown(Exception):
        """Raised by ``put`` and ``get`` of a queue that was shut down."""

    def _check(timeout: float) -> None:
        if not timeout >= 0:  # unlike ``timeout < 0``, this condition also refuses NaN
            raise ValueError("'timeout' must be a non-negative number")

    class Queue(queue.Queue[T]):
        """``queue.Queue`` with ``shutdown``: first in, first out.

        Args:
            maxsize: The largest number of elements. 0 or less means no limit.
        """

        is_shutdown: bool

        def __init__(self, maxsize: int = 0) -> None:
            super().__init__(maxsize)
            self.is_shutdown = False

        def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:
            """Put ``item`` in. First wait for room.

            Args:
                item: The element.
                block: Whether to wait.
                timeout: Seconds. Default: no limit.

            Raises:
                Full: The queue is full, or stays full for ``timeout`` seconds.
                ShutDown: The queue was shut down.
            """
            with self.not_full:
                is_full = False
                if self.maxsize > 0:
                    if block and timeout is not None:
                        _check(timeout)
                    is_full = self._qsize() >= self.maxsize
                if is_full and block:
                    is_full = not self.not_full.wait_for(
                        lambda: self.is_shutdown or self._qsize() < self.maxsize, timeout
                    )
                if self.is_shutdown:
                    raise ShutDown
                if is_full:
                    raise queue.Full
                self._put(item)
                self.unfinished_tasks += 1
                self.not_empty.notify()

        def get(self, block: bool = True, timeout: float | None = None) -> T:
            """Take an element out. First wait until there is an element.

            Args:
                block: Whether to wait.
                timeout: Seconds. Default: no limit.

            Raises:
                Empty: The queue is empty, or stays empty for ``timeout`` seconds.
                ShutDown: The queue was shut down, and is empty.
            """
            with self.not_empty:
                if block and timeout is not None:
                    _check(timeout)
                size = self._qsize()
                if not size and block:
                    self.not_empty.wait_for(lambda: self.is_shutdown or self._qsize(), timeout)
                    size = self._qsize()
                if not size:
                    raise ShutDown if self.is_shutdown else queue.Empty
                item = self._get()
                self.not_full.notify()
                return item

        def shutdown(self, immediate: bool = False) -> None:
            """Let ``put`` raise ``ShutDown`` from now on, and ``get`` once the queue is empty.

            Args:
                immediate: Empty the queue immediately, and count the dropped elements as done.
            """
            with self.mutex:
                self.is_shutdown = True
                if immediate:
                    while self._qsize():
                        self._get()
                        self.unfinished_tasks = max(0, self.unfinished_tasks - 1)
                    self.all_tasks_done.notify_all()
                self.not_empty.notify_all()
                self.not_full.notify_all()

    class LifoQueue(Queue[T], queue.LifoQueue[T]):
        """``queue.LifoQueue`` with ``shutdown``: last in, first out.

        Args:
            maxsize: The largest number of elements. 0 or less means no limit.
        """

    class PriorityQueue(Queue[C], queue.PriorityQueue[C]):
        """``queue.PriorityQueue`` with ``shutdown``: the smallest element first.

        Args:
            maxsize: The largest number of elements. 0 or less means no limit.
        """


def add_conditions(queue: Queue[Any], mutex: threading.Lock) -> None:
    """Give ``queue`` the lock ``mutex``, and new conditions that use this lock."""
    queue.not_empty = threading.Condition(mutex)
    queue.not_full = threading.Condition(mutex)
    queue.all_tasks_done = threading.Condition(mutex)
    queue.mutex = mutex
