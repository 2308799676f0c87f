"""The standard library's queues, with the ``shutdown`` of Python 3.13 on every version of Python.

These queues are the specification of the compiled queues. Backends without compiled queues use
these queues themselves.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

__all__ = ["LifoQueue", "PriorityQueue", "Queue", "ShutDown", "SimpleQueue", "add_conditions"]

T = TypeVar("T")
C = TypeVar("C", bound="SupportsRichComparison")

if sys.version_info >= (3, 13):
    from queue import LifoQueue, PriorityQueue, Queue, ShutDown

    def add_conditions(queue: Queue[Any], mutex: threading.Lock) -> None:
        """Set ``mutex`` as the lock of ``queue``, with new conditions that use it."""
        queue.not_empty = threading.Condition(mutex)
        queue.not_full = threading.Condition(mutex)
        queue.all_tasks_done = threading.Condition(mutex)
        queue.mutex = mutex
else:

    class ShutDown(Exception):
        """Raised by ``put`` and ``get`` of a queue that was shut down."""

    class _Refusing(threading.Condition):
        """A condition that calls ``refuse``, which may raise, when entered and after each wait."""

        def __init__(self, mutex: threading.Lock, refuse: Callable[[], None]) -> None:
            super().__init__(mutex)
            self._refuse = refuse

        def __enter__(self) -> bool:
            entered = super().__enter__()
            try:
                self._refuse()
            except ShutDown:
                self.release()
                raise
            return entered

        def wait(self, timeout: float | None = None) -> bool:
            notified = super().wait(timeout)
            self._refuse()
            return notified

    def add_conditions(queue: Queue[Any], mutex: threading.Lock) -> None:
        """Set ``mutex`` as the lock of ``queue``, with new conditions that use it."""
        queue.not_empty = _Refusing(mutex, queue._refuse_get)
        queue.not_full = _Refusing(mutex, queue._refuse_put)
        queue.all_tasks_done = threading.Condition(mutex)
        queue.mutex = mutex

    class Queue(queue.Queue[T]):
        """``queue.Queue`` with ``shutdown``: first in, first out.

        Args:
            maxsize: The largest number of elements. 0 or less means no limit.
        """

        is_shutdown: bool

        def __init__(self, maxsize: int = 0) -> None:
            super().__init__(maxsize)
            self.is_shutdown = False
            add_conditions(self, self.mutex)

        def _refuse_put(self) -> None:
            if self.is_shutdown:
                raise ShutDown

        def _refuse_get(self) -> None:
            if self.is_shutdown and not self._qsize():
                raise ShutDown

        def shutdown(self, immediate: bool = False) -> None:
            """Let ``put`` raise ``ShutDown`` from now on, and ``get`` once the queue is empty.

            Args:
                immediate: Empty the queue at once, and count the dropped elements as done.
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
