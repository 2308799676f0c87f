"""Sends metrics and spans to an OpenTelemetry collector, on a thread of Spark's driver."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from time import monotonic
from traceback import format_tb
from typing import Final

from rstreams_fast.spark.runs import read_runs, totals_by_stage
from rstreams_fast.spark.telemetry.metric_reader import MetricReader
from rstreams_fast.spark.telemetry.options import OpenTelemetry
from rstreams_fast.spark.telemetry.spans import take_spans

__all__ = ["CLOSE_SECONDS", "Exporter"]

CLOSE_SECONDS: Final = 2.0
"""Seconds that the last export may take."""

SPANS_SECONDS: Final = 5.0
"""Seconds between two exports of spans: the default of OpenTelemetry."""

SPANS_OF_REQUEST: Final = 512

OWNER_CHECK_SECONDS: Final = 1.0
"""Seconds between two checks whether the ``Metrics`` object of an exporter still exists."""

_log: Final = logging.getLogger("rstreams_fast")

_open_exporters: Final[set[Exporter]] = set()
"""The exporters that are not closed yet. They send their last metrics when the process exits."""


class Exporter:
    """Sends spans every ``SPANS_SECONDS``, metrics every ``interval`` seconds, and both at the end.

    A thread of the object sends them. The thread ends after ``close``, at process exit, or when the
    ``owner`` (a ``Metrics`` object) is garbage. Any thread may call the methods.
    """

    def __init__(self, telemetry: OpenTelemetry, owner: object, folder: Path) -> None:
        """``folder`` is the directory to which workers write metrics and spans."""
        self._client = telemetry.client()
        self.spans: Final = self._client.begin_spans(telemetry.sample, telemetry.most_spans)
        """The options for spans that workers make of calls. ``None``: workers make no spans."""
        self._interval = telemetry.interval
        self._owner = weakref.ref(owner)
        self._folder = folder
        self._reader = MetricReader()
        self._changed = threading.Condition()
        self._flushes_requested = self._flushes_done = 0
        self._succeeded = self._closing = self._warned = False
        self._thread = threading.Thread(target=self._run, name="rstreams-telemetry", daemon=True)
        self._thread.start()
        _open_exporters.add(self)

    def flush(self, timeout: float) -> bool:
        """Send the metrics now. Return whether the collector got them in ``timeout`` seconds."""
        with self._changed:
            self._flushes_requested += 1
            mine = self._flushes_requested
            self._changed.notify_all()
            in_time = self._changed.wait_for(lambda: self._flushes_done >= mine, timeout)
            return in_time and self._succeeded

    def close(self) -> None:
        """Send the last metrics, and end the thread. Wait at most ``CLOSE_SECONDS`` for its end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(CLOSE_SECONDS)
        self._client.stop()  # a thread that still sends must not repeat a request that fails
        if self._thread.is_alive():
            self._warn_once()
        _open_exporters.discard(self)

    def _run(self) -> None:
        due = monotonic() + self._interval
        spans_due = monotonic() + SPANS_SECONDS
        while True:
            with self._changed:
                self._changed.wait_for(
                    self._must_send, min(OWNER_CHECK_SECONDS, max(0, due - monotonic()))
                )
                requested, last = self._flushes_requested, self._closing or self._owner() is None
            if last or requested > self._flushes_done or monotonic() >= spans_due:
                self._send(self._send_spans)
                spans_due = monotonic() + SPANS_SECONDS
            if last or requested > self._flushes_done or monotonic() >= due:
                succeeded = self._send(self._send_metrics)
                due = monotonic() + self._interval
                with self._changed:
                    self._flushes_done, self._succeeded = requested, succeeded
                    self._changed.notify_all()
            if last:
                self._send(self._client.end_spans)
                _open_exporters.discard(self)
                return

    def _must_send(self) -> bool:
        return self._closing or self._flushes_requested > self._flushes_done

    def _send_metrics(self) -> bool:
        stages = totals_by_stage(read_runs(self._folder))
        return self._client.send_metrics(self._reader.read(stages.values()))

    def _send_spans(self) -> bool:
        sent = True
        spans = take_spans(self._folder)
        while batch := list(islice(spans, SPANS_OF_REQUEST)):
            sent = sent and self._client.send_spans(batch)  # after a failure, drop later batches
        return sent

    def _send(self, send: Callable[[], bool]) -> bool:
        try:
            succeeded = send()
        except Exception as raised:
            # Do not log the error's message: in OpenTelemetry 1.35 it contains the URL or a header.
            name, trace = type(raised).__name__, "".join(format_tb(raised.__traceback__))
            self._warn_once(f"some was not sent because of {name}\n{trace}")
            return False
        if not succeeded:
            self._warn_once()
        return succeeded

    def _warn_once(
        self, what: str = "the collector does not take everything; the job goes on"
    ) -> None:
        """Log a warning at the first failure. Do not log the URL, which may contain a key."""
        if not self._warned:
            self._warned = True
            _log.warning("telemetry: %s", what)


if hasattr(os, "register_at_fork"):
    # A forked child process has no exporter threads, so it must not close the exporters.
    os.register_at_fork(after_in_child=_open_exporters.clear)


@atexit.register
def _close_all() -> None:
    for exporter in list(_open_exporters):
        exporter.close()
