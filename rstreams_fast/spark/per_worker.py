"""``using=rs.PerWorker(factory)``: a model on a card, a pool of connections."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from rstreams_fast.calls.functions import label_of
from rstreams_fast.spark.worker.opened import opened

__all__ = ["PerWorker"]


@dataclass(frozen=True, repr=False)
class PerWorker:
    """A context manager that ``using`` opens once per Python worker: a model on a card, a pool.

    ``using=rs.PerWorker(factory)``. The first partition of a worker enters the context manager, and
    all later partitions use it, of all stages that have the same object; where a plan has two of
    them in one worker, both use it at once, on any thread. It is entered on one of a partition's
    threads, left on the worker's own, and knows of no partition that fails. A factory that raises
    is asked again by the next partition. An async manager is refused: it belongs to a loop, and
    each partition has its own.

    It is left when the worker ends by itself: after a minute without a task, after a task that
    failed or was not read to its end, and, without ``spark.python.worker.reuse``, after each task.
    A worker that is killed leaves nothing: when a task is cancelled, when an executor is lost, and
    at the end of the application. Then the kernel closes its files and connections.

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
        return f"PerWorker({label_of(self.factory)})"  # a partial would show its arguments

    def __call__(self) -> AbstractContextManager[Any]:
        """Return a context manager for a partition, which gives what the worker has open."""
        return opened(self.id, self.factory)
