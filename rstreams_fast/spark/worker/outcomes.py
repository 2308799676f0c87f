"""What became of a call, for ``on_failure``: nothing instead, or a report beside its value."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rstreams_fast.spark.options import CallOptions
from rstreams_fast.spark.worker.counters import Counters

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "INPUT",
    "OUTCOME",
    "Failures",
    "Outcome",
    "StageError",
    "outcome_fields",
    "outcome_with_inputs",
    "outcomes_of",
    "within",
]

OUTCOME: Final = "outcome"
"""The column that ``enrich`` and ``map_batches`` add with ``on_failure="column"``."""

INPUT: Final = "input"
"""The field of it that holds, with ``map_batches``, a row whose call failed."""

SHARE_OF_AT_LEAST: Final = 100
"""Of fewer calls a share is taken as of so many: one failure of three says little."""


class StageError(RuntimeError):
    """The stage itself failed, not a call: the task fails, whatever ``on_failure`` says.

    A call is neither retried after it nor counted as a failure of its row.
    """


class Outcome(NamedTuple):
    """The value of a call, or its error, and what it took."""

    value: Any
    error: BaseException | None
    attempts: int
    seconds: float


class Failures:
    """What ``on_failure`` and ``max_failures`` say of calls that fail. Belongs to the loop."""

    def __init__(self, options: CallOptions, counters: Counters) -> None:
        self._on_failure = options.on_failure
        self._most = options.max_failures
        self._counters = counters
        self._ended = 0

    def around(
        self, fn: Callable[..., Awaitable[Any]], convert: Callable[[Any], Any] | None = None
    ) -> Callable[..., Awaitable[Any]]:
        """Return ``fn``, whose failures are not raised; one of ``convert`` is the call's, too."""
        instead: Any = () if self._on_failure == "drop" else None
        told = self._on_failure == "column"

        async def call(*args: Any) -> Any:
            try:
                result = await fn(*args)
                if convert is not None:
                    result = convert(result)
            except StageError:
                raise
            except Exception as error:
                self._count(error)
                return Outcome(None, error, 1, 0.0) if told else instead
            self._count(result.error if isinstance(result, Outcome) else None)
            return result

        return call

    def refuse(self, result: Any, error: Exception) -> Any:
        """Return what there is instead of a result that cannot become what is declared."""
        self._ended -= 1  # as a success
        self._count(error)
        return result._replace(value=None, error=error) if isinstance(result, Outcome) else None

    def _count(self, error: BaseException | None) -> None:
        self._ended += 1
        if error is None:
            return
        self._counters.failures += 1
        failures, most = self._counters.failures, self._most
        if isinstance(most, float):
            allowed = most * max(self._ended, SHARE_OF_AT_LEAST)
        else:
            allowed = math.inf if most is None else most
        if failures > allowed:
            raise RuntimeError(
                f"{failures} of {self._ended} calls failed, and max_failures is {most}"
            ) from error


def outcome_fields() -> list[pa.Field]:
    """Return the fields that tell what became of a call."""
    import pyarrow as pa

    error = pa.struct([("type", pa.string()), ("message", pa.string())])
    return [
        pa.field("error", error),
        pa.field("attempts", pa.int32()),
        pa.field("seconds", pa.float64()),
    ]


def outcomes_of(results: list[Outcome | None]) -> pa.Array:
    """Return the column that tells what became of the calls; null where there was none."""
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
    """Return values and outcomes as one column of structs; null where there was no call."""
    import pyarrow as pa

    fields = [pa.field("value", values.type), *outcome_fields()]
    return pa.StructArray.from_arrays(
        [values, *outcomes.flatten()], fields=fields, mask=outcomes.is_null()
    )


def outcome_with_inputs(outcome: Outcome, rows: int, batch: pa.RecordBatch) -> pa.Array:
    """Return the column of ``rows`` rows of a call for ``batch``; if that failed, it is in it."""
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
