"""Applies ``on_failure`` to failed calls: a null, no row, or a column that reports the error."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.calls.errors import StageError
from rstreams_fast.calls.outcome import Outcome
from rstreams_fast.spark.options import CallOptions
from rstreams_fast.spark.worker.counters import Counters

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "INPUT",
    "OUTCOME",
    "RowFailures",
    "outcome_fields",
    "outcome_with_inputs",
    "outcomes_of",
    "within",
]

OUTCOME: Final = "outcome"
"""The column that ``enrich`` and ``map_batches`` add with ``on_failure="column"``."""

INPUT: Final = "input"
"""The field of ``outcome`` in which ``map_batches`` returns the input row of a failed call."""

SHARE_OF_AT_LEAST: Final = 100
"""The fewest calls that a share (``at_most=0.1``) refers to: 1 failure of 3 says little."""


class RowFailures:
    """Applies ``on_failure`` and ``at_most`` to failed calls, on the loop's thread."""

    def __init__(self, options: CallOptions, counters: Counters) -> None:
        self._instead: Any = () if options.on_failure == "drop" else None
        self._as_outcomes = options.as_outcomes
        self._most = options.at_most
        self._counters = counters
        self._ended = 0

    def around(
        self, fn: Callable[..., Awaitable[Any]], convert: Callable[[Any], Any] | None = None
    ) -> Callable[..., Awaitable[Any]]:
        """Return a wrapper of ``fn`` which returns a replacement if a call fails, or if ``convert``
        refuses its result. It raises ``RuntimeError`` if more calls fail than ``at_most`` allows.
        """
        instead, as_outcomes = self._instead, self._as_outcomes

        async def call(*args: Any) -> Any:
            try:
                result = await fn(*args)
                if convert is not None:
                    result = convert(result)
            except StageError:
                raise
            except Exception as error:
                self._count(error)
                return Outcome(None, error, 1, 0.0) if as_outcomes else instead
            self._count(result.error if isinstance(result, Outcome) else None)
            return result

        return call

    def refuse(self, result: Any, error: Exception) -> Any:
        """Return the replacement for a result that does not fit its declared type."""
        # The call was counted as a success before its result was converted: take the count back.
        self._ended -= 1
        self._count(error)
        return result._replace(value=None, error=error) if isinstance(result, Outcome) else None

    def _count(self, error: BaseException | None) -> None:
        self._ended += 1
        if error is None:
            self._counters.count_success()
            return
        self._counters.count_failure(error)
        failures, most = self._counters.failures, self._most
        if isinstance(most, float):
            allowed = most * max(self._ended, SHARE_OF_AT_LEAST)
        else:
            allowed = math.inf if most is None else most
        if failures > allowed:
            raise RuntimeError(
                f"{failures} of {self._ended} calls failed, and Failures(at_most) is {most}"
            ) from error


def outcome_fields() -> list[pa.Field]:
    """Return the fields that describe the outcome of a call."""
    import pyarrow as pa

    error = pa.struct([("type", pa.string()), ("message", pa.string())])
    return [
        pa.field("error", error),
        pa.field("attempts", pa.int32()),
        pa.field("seconds", pa.float64()),
    ]


def outcomes_of(results: list[Outcome | None]) -> pa.Array:
    """Return a column of errors, attempts and seconds of calls; null for a row without a call."""
    import pyarrow as pa

    return pa.array(
        [
            None
            if result is None
            else {
                "error": None
                if result.error is None
                else {
                    "type": type(result.error).__qualname__,
                    "message": _message(result.error),
                },
                "attempts": result.attempts,
                "seconds": result.seconds,
            }
            for result in results
        ],
        pa.struct(outcome_fields()),
    )


def within(values: pa.Array, outcomes: pa.Array) -> pa.Array:
    """Return a column of structs that join values and outcomes; null for a row without a call."""
    import pyarrow as pa

    fields = [pa.field("value", values.type), *outcome_fields()]
    return pa.StructArray.from_arrays(
        [values, *outcomes.flatten()], fields=fields, mask=outcomes.is_null()
    )


def outcome_with_inputs(outcome: Outcome, rows: int, batch: pa.RecordBatch) -> pa.Array:
    """Return the column ``outcome`` (error, attempts, seconds) for the ``rows`` output rows of a
    call. If the call failed, the column has the rows of its input ``batch``, too.
    """
    import pyarrow as pa

    fields = list(batch.schema)
    if outcome.error is None:
        inputs = pa.nulls(rows, pa.struct(fields))
    else:
        inputs = pa.StructArray.from_arrays(batch.columns, fields=fields)
    told = pa.repeat(outcomes_of([outcome])[0], rows)
    return pa.StructArray.from_arrays(
        [*told.flatten(), inputs], fields=[*outcome_fields(), pa.field(INPUT, inputs.type)]
    )


def _message(error: BaseException) -> str:
    try:
        return str(error).encode(errors="replace").decode()
    except Exception:
        return f"<{type(error).__qualname__} without a message>"
