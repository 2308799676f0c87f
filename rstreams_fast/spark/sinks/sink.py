"""The base class of all sinks. ``Sink.drain`` makes the function that writes one partition."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rstreams_fast.spark.frames import MapFunction
from rstreams_fast.spark.options import Bounds
from rstreams_fast.spark.sinks.dead_letters import DeadLetters

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from rstreams_fast.calls.lists.batching import Batching
    from rstreams_fast.spark.metrics import Metrics

__all__ = ["Frame", "Sink", "SinkOptions"]


@dataclass(frozen=True)
class Frame:
    """Describes a DataFrame that is being written: its columns, and the ids of the write."""

    schema: StructType
    job: str
    """The name of the job, or the id of the streaming query; empty if there is none."""
    write_id: str
    """The id of the write. The repetitions of a write with a job name have the same id, and so have
    all batches of a query."""
    batch: int | None = None
    """The number of the batch in a streaming query; ``None`` if the DataFrame is no stream."""
    files: tuple[str, ...] = ()
    """The files that the DataFrame reads, if this write may replace files of an earlier run."""
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The id of this one run of the write. Each repetition has another id."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.schema.names)


@dataclass(frozen=True)
class SinkOptions:
    """The arguments of ``write`` and ``writer``. ``None`` means the sink's own default."""

    key: tuple[str, ...] = ()
    using: Callable[[], Any] | None = None
    concurrency: int | None = None
    batch: Batching | None = None
    dead_letters: DeadLetters | None = None
    bounds: Bounds = field(default_factory=Bounds)
    metrics: Metrics | None = None

    def refuse(self, what: str, *arguments: str) -> None:
        """Raise an error if one of ``arguments`` was given: the sink ``what`` does not take it."""
        for argument in arguments:
            if getattr(self, argument) not in (None, ()):
                name = "on_failure" if argument == "dead_letters" else argument
                raise ValueError(f"{name} does not suit {what}")


class Sink(ABC):
    """The base class of sinks. On the driver, a sink begins, commits and finishes a write.

    The workers do not get the sink: they get the function that ``drain`` returns.
    """

    @abstractmethod
    def drain(self, frame: Frame) -> MapFunction:
        """Return a function that writes the batches of a partition, and yields its counts."""

    def begin(self, frame: Frame) -> bool:  # noqa: ARG002
        """Prepare a write. Return ``False`` if an earlier run of the write was committed."""
        return True

    def commit(self, frame: Frame, tokens: list[str], rows: int) -> bool:  # noqa: ARG002
        """Commit a write. Return ``False`` if another run of the write was committed meanwhile."""
        return True

    def finish(self, frame: Frame) -> None:  # noqa: B027 - most have nothing to remove
        """Clean up what ``begin`` has made, after a success or a failure of the write."""
