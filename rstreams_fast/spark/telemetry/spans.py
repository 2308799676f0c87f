"""Makes trace spans of calls. Workers write the spans to files, and the driver reads the files."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from rstreams_fast.calls.errors import BudgetSpentError, CircuitOpenError, as_timeout
from rstreams_fast.calls.traces import current, waited_before
from rstreams_fast.errors import RingClosed
from rstreams_fast.spark.stage_metrics import StageMetrics
from rstreams_fast.spark.telemetry.written_span import Attributes, SpanOptions, WrittenSpan

__all__ = ["SPANS_SUFFIX", "CallSpans", "take_spans"]

SPANS_SUFFIX: Final = ".metrics.spans"

MOST_SPANS: Final = 4096
"""The most ended spans of a partition that wait until they are written. More spans are dropped."""

MOST_SKIPPED: Final = 2.0**40
"""One of at most this number of calls has a span, even if ``options.sample`` is almost 0."""

WRITE_SECONDS: Final = 1.0
"""Seconds between two writes of the ended spans."""

NOT_MADE: Final = (BudgetSpentError, CircuitOpenError)
"""These errors mean that the policy refused an attempt, so that the function was not called."""


class CallSpans:
    """Makes trace spans of a sample of a partition's calls, and writes them to files.

    The ``CallEngine``, which makes the calls, uses the object as its ``Tracer``. Only one thread at
    a time may call ``begin``, and only one thread at a time ``write``.
    """

    def __init__(self, options: SpanOptions, counters: StageMetrics) -> None:
        self.every = min(1 / options.sample, MOST_SKIPPED)
        self.calls_to_skip = secrets.randbelow(int(self.every))
        self.counters = counters
        self.ended: list[WrittenSpan] = []
        self.options = options
        self.current_span = _current_span()
        self._files = 0
        self._due = 0.0
        self._factor = 1
        self._rest = 0.0
        """The number of calls to the next span is rounded down. This is the fraction cut off."""
        self._tokens, self._since = options.most, time.monotonic()

    def begin(self) -> CallSpan:
        """Return a context manager for the next call, whose span is current in the block."""
        now, most = time.monotonic(), self.options.most
        self._tokens = min(self._tokens + (now - self._since) * most, most) - 1
        self._since = now
        # If the rate of spans is too high, sample half as many calls from now on; else twice as
        # many, up to the share ``options.sample``.
        self._factor = self._factor * 2 if self._tokens < most / 2 else max(self._factor // 2, 1)
        until_next = self.every * self._factor + self._rest
        self._rest = until_next % 1
        self.calls_to_skip = int(until_next) - 1
        return CallSpan(self)

    def write(self, metrics_file: Path, *, last: bool) -> None:
        """Write the ended spans to a file beside ``metrics_file``, if the write is due or ``last``.

        Raises:
            OSError: The file cannot be written.
        """
        if not self.ended or (not last and time.monotonic() < self._due):
            return
        self._due = time.monotonic() + WRITE_SECONDS
        spans, self.ended = self.ended, []
        self._files += 1
        name = metrics_file.name.partition(".")[0]
        file = metrics_file.with_name(f"{name}.{self._files}{SPANS_SUFFIX}")
        aside = file.with_suffix(f".{os.getpid()}.tmp")
        aside.write_text("\n".join(filter(None, map(_json_of, spans))))
        aside.replace(file)


def _json_of(span: WrittenSpan) -> str:
    """Return ``span`` as JSON; an empty text if JSON cannot represent what the user added to it."""
    try:
        return json.dumps(vars(span), default=str, skipkeys=True)
    except Exception as refused:  # ``default=str`` calls ``__str__`` of the user's attributes
        name = type(refused).__name__
        logging.getLogger("rstreams_fast").debug("a span of %s is left out: %s", span.name, name)
        return ""


class CallSpan:
    """A context manager for one call: in its block the span of the call is the current span.

    This is a class, because a generator with ``contextlib.contextmanager`` sets the attribute
    ``__traceback__`` of an exception. Some exceptions, such as frozen dataclasses, refuse that.
    """

    def __init__(self, spans: CallSpans) -> None:
        self._spans = spans
        counters = spans.counters
        self.counts: object = counters
        before = waited_before.get()
        attributes: Attributes = {"rstreams.stage": counters.stage, "host.name": counters.host}
        if counters.partition >= 0:
            attributes["spark.stage"] = counters.spark_stage
            attributes["spark.partition"] = counters.partition
            attributes["spark.attempt"] = counters.attempt
        span_id = os.urandom(8).hex()  # do not use ``random``: the user may have seeded it
        start = time.time_ns() - int(before * 1e9)
        self._written = WrittenSpan(counters.stage, span_id, start, attributes, [])
        self._failed_attempts = 0
        self._last_error: BaseException | None = None
        """The exception of the latest failed attempt of this call."""
        self._error: BaseException | None = None
        if before:
            waited_before.set(0.0)
            self.note_wait("limit", before)

    def __enter__(self) -> Self:
        self._token = current.set(self)
        if (otel := self._spans.current_span) is not None:
            self._otel_token = otel.enter(self._written, self._spans.options)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: object
    ) -> None:
        if (otel := self._spans.current_span) is not None:
            otel.leave(self._otel_token)
        # ValueError: the garbage collector has ended the call, in another ``contextvars`` context.
        with suppress(ValueError):
            current.reset(self._token)
        self._end(self._error if error is None else error)
        # The tracebacks of these errors refer to frames that refer to this object. Break the cycle.
        self._error = self._last_error = None
        if len(self._spans.ended) < MOST_SPANS:
            self._spans.ended.append(self._written)

    def note_failed_attempt(self, error: BaseException) -> None:
        self._last_error = error
        name = "refused"
        if not isinstance(error, NOT_MADE):
            name = "attempt failed"
            self._failed_attempts += 1
        attrs = {"error.type": type(error).__qualname__, "rstreams.attempt": self._failed_attempts}
        self._written.events.append((time.time_ns(), name, attrs))

    def note_wait(self, cause: str, seconds: float) -> None:
        name = f"rstreams.wait.{cause}"
        attributes = self._written.attributes
        attributes[name] = attributes.get(name, 0.0) + seconds

    def note_failure(self, error: BaseException) -> None:
        self._error = error

    def _end(self, error: BaseException | None) -> None:
        written, attempts, outcome = self._written, self._failed_attempts, "ok"
        is_recorded = self._last_error is not None and (
            error is self._last_error or getattr(error, "__cause__", None) is self._last_error
        )
        if not (is_recorded or isinstance(error, NOT_MADE)):
            attempts += 1  # ``note_failed_attempt`` was not called for the last attempt
        if error is not None:
            error = as_timeout(error)
            outcome = _outcome_of(error)
            written.error = type(error).__qualname__
            written.attributes["error.type"] = written.error
        written.attributes["rstreams.attempts"] = attempts
        written.attributes["rstreams.outcome"] = outcome
        written.end = time.time_ns()


def _outcome_of(error: BaseException) -> str:
    if isinstance(error, NOT_MADE):
        return "refused"
    # RingClosed: the stage ended before a call on a thread could pass its rows to the stage.
    if isinstance(error, asyncio.CancelledError | RingClosed):
        return "cancelled"
    return "timeout" if isinstance(error, TimeoutError) else "error"


def _current_span() -> Any:
    """Return the module ``current_span``; ``None`` if OpenTelemetry is not installed."""
    try:
        from rstreams_fast.spark.telemetry import current_span
    except ModuleNotFoundError:
        return None
    return current_span


def take_spans(folder: Path) -> Iterator[WrittenSpan]:
    """Yield the spans of all span files in ``folder``, and remove the files."""
    for file in sorted(folder.glob(f"*{SPANS_SUFFIX}")):
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
            file.unlink()
            yield from [WrittenSpan(**json.loads(line)) for line in lines]
        except (OSError, ValueError, TypeError) as refused:
            logging.getLogger("rstreams_fast").debug("spans of %s are left out: %s", file, refused)
