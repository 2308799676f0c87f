"""``using=rs.PerWorker(factory)``: a context manager that is opened once per Python worker."""

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
    """A context manager that ``using`` opens once per Python worker: a model on a GPU, a pool.

    ``using=rs.PerWorker(factory)``. The first partition of a worker enters the context manager. All
    later partitions of all stages with the same ``PerWorker`` use its value. If a worker runs two
    of these stages at once, both use the value at the same time, on any thread. A thread of a
    partition enters the manager, and the worker's main thread leaves it; the manager is not told of
    partitions that fail. If the factory raises, the next partition calls it again. An async manager
    is refused: it belongs to a loop, and each partition has its own loop.

    The manager is left when the worker ends by itself: after a minute without a task, after a task
    that failed or was not read to its end, and, without ``spark.python.worker.reuse``, after each
    task. Spark kills a worker when a task is cancelled, when an executor is lost, and at the end of
    the application. A killed worker does not leave the manager: the kernel closes its files and
    connections.

    Args:
        factory: Returns the context manager; its value is passed to the function first.

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
        # Show the label: the repr of a partial would show its arguments.
        return f"PerWorker({label_of(self.factory)})"

    def __call__(self) -> AbstractContextManager[Any]:
        """Return a context manager for one partition; its value is the worker's open value."""
        return open_once(self.id, self.factory)
