"""Opens the context manager of a ``PerWorker`` once per process, and closes it at process exit.

A ``PerWorker`` is a value of the user's argument ``using``: all partitions in a worker share its
context manager.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar, copy_context
from typing import Any, Final, NoReturn

from rstreams_fast.spark.worker.counters import task_context

__all__ = ["open_once"]

# Reentrant: the user's factory, which runs under the lock, may itself call ``open_once``.
_lock: Final = threading.RLock()
_values: Final[dict[str, _OpenManager]] = {}
_stack: Final = ExitStack()


class _OpenManager:
    """Stands for the user's context manager, which stays open until the worker process ends.

    Each partition enters and leaves this object instead. ``__enter__`` returns the value of the
    user's manager, and sets the context variables that ``__enter__`` of the user's manager has set.
    """

    def __init__(self, factory: Callable[[], Any]) -> None:
        # Call __enter__ and __exit__ of the user's manager in the same contextvars context. So its
        # __exit__ can reset the context variables that its __enter__ has set.
        self._context: Final = copy_context()
        before = dict(self._context)
        self._value: Final = self._context.run(self._open, factory)
        self._variables: Final[list[tuple[ContextVar[Any], Any]]] = [
            (variable, value)
            for variable, value in self._context.items()
            if variable not in before or before[variable] is not value
        ]

    def _open(self, factory: Callable[[], Any]) -> Any:
        manager = factory()
        kind = type(manager)
        if not (hasattr(kind, "__enter__") and hasattr(kind, "__exit__")):
            raise TypeError(
                f"PerWorker: its factory gave {kind.__name__}, which is no context manager; an "
                "async one belongs to the loop of a partition"
            )
        try:
            value = manager.__enter__()
        except TypeError as refused:
            # The error of aiohttp.ClientSession, for example, says "Use async with instead". Add a
            # note why this is impossible: all partitions share the context manager, and each
            # partition has its own event loop.
            if hasattr(kind, "__aenter__"):
                refused.add_note("PerWorker: an async manager belongs to the loop of a partition")
            raise
        _stack.callback(self._context.run, manager.__exit__, None, None, None)
        return value

    def __enter__(self) -> Any:
        for variable, value in self._variables:
            variable.set(value)
        return self._value

    def __exit__(self, *_: object) -> None:
        """Do nothing: the user's manager stays open until the worker process ends."""


def open_once(key: str, factory: Callable[[], Any]) -> _OpenManager:
    """Return the open context manager for ``key``. If ``key`` is new, enter ``factory()`` first."""
    with _lock:
        found = _values.get(key)
        if found is None:
            found = _OpenManager(factory)
            if not _values:
                _close_at_the_end()
            _values[key] = found
        return found


def _close_at_the_end() -> None:
    pid = os.getpid()

    def close() -> None:
        # A forked child must not close the user's context managers, which its parent has opened.
        if os.getpid() != pid:
            return
        try:
            _stack.close()
        except Exception:
            logging.getLogger("rstreams_fast").exception("PerWorker: not closed at the end")

    atexit.register(close)
    if task_context() is not None:
        # A worker that Spark's daemon has forked ends by os._exit, which runs no atexit functions.
        # So replace os._exit by a function that first closes the user's managers.
        exit_process = os._exit

        def close_and_exit(status: int) -> NoReturn:
            try:
                close()
            finally:
                # End the process even if close() raises: the exception must not get into the code
                # of Spark's daemon.
                exit_process(status)

        os._exit = close_and_exit
