"""Live metrics of stages, which the workers write to small files in a shared directory.

The metrics use files because Spark's accumulators lose the counts of a task that is stopped early.
While a stage processes a partition, it rewrites one file for this partition a few times a second.
It writes to a temporary file and renames it, so that readers never see an incomplete file. The
counts of ended partitions are summed up, so that the number of files grows with the number of
workers, not of tasks.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Self

from rstreams_fast.calls.journal.uris import SCHEME
from rstreams_fast.spark.runs import PATTERNS, Runs, read_runs, sum_of, totals_by_stage
from rstreams_fast.spark.stage_metrics import StageMetrics, html_of
from rstreams_fast.spark.telemetry.exporter import CLOSE_SECONDS, Exporter
from rstreams_fast.spark.telemetry.metric_reader import MetricReader
from rstreams_fast.spark.telemetry.options import OpenTelemetry
from rstreams_fast.spark.telemetry.prometheus import prometheus_text
from rstreams_fast.spark.telemetry.written_span import SpanOptions

__all__ = ["Metrics", "StageMetrics", "spans_of"]


class Metrics:
    """Receives the live metrics of stages: give ``metrics=rs.Metrics()`` to any stage.

    The object may be pickled; a copy sends nothing to the OpenTelemetry collector. ``cleanup``, or
    leaving a ``with`` block, removes the files of the metrics. Any thread may use the object.

    Args:
        path: A directory that the driver and the executors share. Default: a new temporary
            directory on the driver, for executors on the same machine.
        telemetry: The OpenTelemetry collector. It gets the metrics regularly, and for the last time
            in ``cleanup``. Default: no collector.

    Raises:
        TypeError: ``path`` is no path, or ``telemetry`` is no ``OpenTelemetry``.
        ValueError: ``path`` is empty, or a URI.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        telemetry: OpenTelemetry | None = None,
    ) -> None:
        if telemetry is not None and not isinstance(telemetry, OpenTelemetry):
            raise TypeError(f"telemetry must be an OpenTelemetry, got {type(telemetry).__name__}")
        self._reader = MetricReader()
        self._exporter: Exporter | None = None
        self._spans: SpanOptions | None = None
        self._made_folder = True
        if path is None:
            path = tempfile.mkdtemp(prefix="rstreams-metrics-")
        elif not isinstance(path, str | os.PathLike):
            raise TypeError(f"path must be a directory's path, got {type(path).__name__}")
        elif not os.fspath(path):
            raise ValueError("path is empty; it must be a directory's path")
        elif SCHEME.match(os.fspath(path)):
            # The message does not show the path: a URI may contain a password.
            raise ValueError("path must be a directory's path, and not a URI")
        else:
            try:
                Path(path).mkdir(parents=True)
            except FileExistsError:
                if not Path(path).is_dir():
                    raise
                self._made_folder = False
        self.path = str(Path(path).absolute())
        if telemetry is not None:
            self._exporter = Exporter(telemetry, self, Path(self.path))
            self._spans = self._exporter.spans

    def __getstate__(self) -> dict[str, object]:
        return {"path": self.path, "_made_folder": self._made_folder, "_spans": self._spans}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._reader, self._exporter = MetricReader(), None

    def read(self) -> list[StageMetrics]:
        """Return the metrics of every partition and attempt so far, in order of their start.

        Partitions that ended some time ago are summed up: one object for each stage and host, with
        the number of its ``partitions``. The ``spark_stage`` and the ``partition`` of such a sum
        are -1.
        """
        return self._runs().all()

    def _runs(self) -> Runs:
        return read_runs(Path(self.path))

    def totals(self, stage: str | None = None) -> StageMetrics:
        """Return the sum of the metrics over all partitions, with one attempt of each partition.

        If a partition has several attempts, the sum has the attempt that is done, else the latest
        attempt. Calls of the other attempts are in ``repeated_attempts``. The sum covers the
        partitions of all actions so far: a second action on the same frame adds its partitions.

        The ``state`` of the sum is the first of these states that any partition has: ``failed``,
        ``running``, ``lost``, ``stopped``, ``done``. Without partitions it is ``never ran`` or
        ``unknown``. The sum is complete only if its ``state`` is ``done``, and if all partitions of
        the action have begun: partitions that have not begun are in no sum.

        Args:
            stage: The name of a stage. Default: all stages.
        """
        found = self._runs()
        if stage is not None:
            found = found.of(stage)
        total = sum_of(found)
        total.stage = stage or ", ".join(dict.fromkeys(metrics.stage for metrics in found.all()))
        return total

    def by_stage(self) -> dict[str, StageMetrics]:
        """Return the totals of every stage so far, by name, in order of their first start.

        Stages with the state ``never ran`` come first.
        """
        return totals_by_stage(self._runs())

    def stages(self) -> list[str]:
        """Return the names of all stages so far, in the same order as ``by_stage``."""
        return self._runs().stages

    def prometheus(self) -> str:
        """Return the metrics of every stage so far, in Prometheus' text format.

        The metric names begin with ``rstreams_``. The label ``stage`` is the name of the stage. A
        metric with several values per stage has a second label: ``type``, ``cause``, ``source`` or
        ``unit``. Between two calls of this method on the same object, counters never decrease.
        """
        return prometheus_text(self._reader.read(self.by_stage().values()))

    def flush(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Send the current metrics to the OpenTelemetry collector.

        Args:
            timeout: The maximum number of seconds to wait.

        Returns:
            Whether the collector has received the metrics; ``True`` without a collector.
        """
        return self._exporter is None or self._exporter.flush(timeout)

    def cleanup(self) -> None:
        """Remove the files of the metrics.

        The directory is removed, too, if this object made it and no other files are in it. An
        OpenTelemetry collector first gets the last metrics, which takes at most two seconds.
        """
        if self._exporter is not None:
            self._exporter.close()
            self._exporter = None
        for pattern in PATTERNS:
            for file in Path(self.path).glob(pattern):
                with contextlib.suppress(OSError):
                    file.unlink()
        if self._made_folder:
            with contextlib.suppress(OSError):
                Path(self.path).rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.cleanup()

    def _repr_html_(self) -> str:
        return html_of(self.by_stage())

    def __repr__(self) -> str:
        return f"Metrics({self.path!r})"


def spans_of(metrics: Metrics) -> SpanOptions | None:
    """Return the options by which workers make trace spans of calls; ``None`` if they make none."""
    return metrics._spans
