"""``using=rs.PerWorker(factory)``: opens a context manager once per Python worker."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from rstreams_fast.calls.functions import label_of
from rstreams_fast.spark.worker.open_managers import open_once

__all__ = ["PerWorker"]


@dataclass(frozen=True, repr=False)
class PerWorker:
    """Opens a context manager once per Python worker, for a model on a GPU or a pool, for example.

    Use it as ``using=rs.PerWorker(factory)``. The first partition in a worker enters the context
    manager. All later partitions in this worker, of all stages with the same ``PerWorker``, use the
    value of this context manager, too. If a worker runs two such stages at once, both use the value
    at the same time, on any thread. A thread of a partition calls ``__enter__``, and the worker's
    main thread calls ``__exit__``. ``__exit__`` gets no exceptions of failed partitions. If the
    factory raises an exception, the next partition calls the factory again. An async context
    manager is refused: it belongs to an event loop, and each partition has its own loop.

    ``__exit__`` is called when the worker ends by itself: after a minute without a task, after a
    task that failed or did not read all its input, and, without ``spark.python.worker.reuse``,
    after each task. Spark kills a worker when a task is cancelled, when an executor is lost, and at
    the end of the application. In a killed worker ``__exit__`` is not called; the kernel closes the
    files and connections.

    Args:
        factory: Returns the context manager. The user's function gets the value of the context
            manager as its first argument.

    Raises:
        TypeError: ``factory`` cannot be called.
    """

    factory: Callable[[], Any]
    id: str = field(default_factory=lambda: uuid.uuid4().hex, init=False)

    def __post_init__(self) -> None:
        if not callable(self.factory):
            raise TypeError(
                "PerWorker(factory) must be a factory of a context manager, "
                f"got {type(self.factory).__name__}, which cannot be called"
            )

    def __repr__(self) -> str:
        # The repr of a ``partial`` would show its arguments, which may be secrets.
        return f"PerWorker({label_of(self.factory)})"

    def __call__(self) -> AbstractContextManager[Any]:
        """Return a context manager for one partition, with the value that the worker shares."""
        return open_once(self.id, self.factory)
