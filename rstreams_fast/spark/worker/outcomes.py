"""Applies ``on_failure``: failed calls give nulls, no rows, or a column that reports the errors."""

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
    "USAGE",
    "OutcomeForm",
    "RowFailures",
]

OUTCOME: Final = "outcome"
"""The name of the column that ``enrich`` and ``map_batches`` add with ``on_failure="column"``."""

INPUT: Final = "input"
"""In the struct column ``outcome``: the field for the input of a failed ``map_batches`` call."""

USAGE: Final = "usage"
"""In the struct column ``outcome``: the field for the units, such as tokens, that a call spent."""

SHARE_OF_AT_LEAST: Final = 100
"""``Failures(at_most=0.1)`` allows a tenth of the ended calls to fail, but at least a tenth of this
number, 10 calls. Otherwise one failure in the first three calls would end the job."""


class RowFailures:
    """Gives failed calls the result that ``on_failure`` declares, and counts them.

    If more calls fail than the user allows by ``Failures(at_most)``, it raises an error, which
    fails the task. Only the thread of the event loop uses the object.
    """

    def __init__(self, options: CallOptions, counters: Counters) -> None:
        self._instead: Any = () if options.on_failure == "drop" else None
        self._as_outcomes = options.as_outcomes
        self._most = options.at_most
        self._counters = counters
        self._ended = self._failed = 0
        self._any_fits = False
        """Whether a result of a call fits its declared type, as far as ``accept`` was told."""

    def wrap(
        self, fn: Callable[..., Awaitable[Any]], convert: Callable[[Any], Any] | None = None
    ) -> Callable[..., Awaitable[Any]]:
        """Return a wrapper of ``fn`` that returns a result even if the call fails.

        A call has failed if ``fn`` or ``convert(result)`` raises an exception. Then ``on_failure``
        decides the result: an ``Outcome`` with the exception, ``()`` or ``None``. If more calls
        have failed than ``Failures(at_most)`` allows, the wrapper raises ``RuntimeError``.
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
        """Count a call as failed, because its ``result`` does not fit the declared type.

        Return the result of a failed call, as ``on_failure`` declares.
        """
        # The wrapper from ``wrap`` has counted the call as a success. Undo this: ``_count`` counts
        # the call again.
        self._ended -= 1
        if not self._any_fits:
            self._counters.forget_successes()
        self._count(error)
        return result._replace(value=None, error=error) if isinstance(result, Outcome) else None

    def accept(self, results: list[Any]) -> None:
        """Note that ``results`` fit the declared type. ``None`` stands for a row without a call."""
        if self._as_outcomes and not self._any_fits:
            self._any_fits = any(result is not None and result.error is None for result in results)

    def _count(self, error: BaseException | None) -> None:
        self._ended += 1
        if error is None:
            self._counters.count_success()
            return
        self._counters.count_failure(error)
        self._failed += 1
        failures, most = self._failed, self._most
        if isinstance(most, float):
            allowed = most * max(self._ended, SHARE_OF_AT_LEAST)
        else:
            allowed = math.inf if most is None else most
        if failures > allowed:
            raise RuntimeError(
                f"{failures} of {self._ended} calls failed, and Failures(at_most) is {most}"
            ) from error


class OutcomeForm:
    """Converts ``Outcome`` objects of calls to an Arrow array of structs. Immutable.

    The fields of a struct are the error of the call, the number of its attempts and its duration in
    seconds. If the user's ``Policy`` counts ``units`` (what calls spend, such as tokens), there is
    a field ``usage``: a struct with the amount of each unit that the call has spent.
    """

    def __init__(self, units: tuple[str, ...]) -> None:
        import pyarrow as pa

        self._units = units
        error = pa.struct([("type", pa.string()), ("message", pa.string())])
        self._fields = [
            pa.field("error", error),
            pa.field("attempts", pa.int32()),
            pa.field("seconds", pa.float64()),
        ]
        if units:
            usage = pa.struct([(unit, pa.float64()) for unit in units])
            self._fields.append(pa.field(USAGE, usage))

    def array(self, results: list[Outcome | None]) -> pa.Array:
        """Return an array of one struct per outcome. ``None`` (a row without a call) gives null."""
        import pyarrow as pa

        structs = [None if result is None else self._struct_of(result) for result in results]
        return pa.array(structs, pa.struct(self._fields))

    def _struct_of(self, result: Outcome) -> dict[str, Any]:
        error = result.error
        struct: dict[str, Any] = {
            "error": None if error is None else _text_of(error),
            "attempts": result.attempts,
            "seconds": result.seconds,
        }
        if self._units:
            # Rows that share a call share the dict ``usage``. The first row removes the amounts
            # from the dict, so later rows get 0. So the sum over all rows is what the calls spent.
            usage = result.usage or {}
            struct[USAGE] = {unit: usage.pop(unit, 0.0) for unit in self._units}
        return struct

    def with_values(self, values: pa.Array, results: list[Outcome | None]) -> pa.Array:
        """Return an array like that of the method ``array``, with a field ``value`` added in front.

        The array has one struct per row. ``results`` has the ``Outcome`` of each row's call, and
        ``values`` its value. A row without a call has ``None`` in ``results``, and a null struct.
        """
        import pyarrow as pa

        outcomes = self.array(results)
        fields = [pa.field("value", values.type), *self._fields]
        return pa.StructArray.from_arrays(
            [values, *outcomes.flatten()], fields=fields, mask=outcomes.is_null()
        )

    def with_inputs(self, outcome: Outcome, rows: list[int], batch: pa.RecordBatch) -> list[Any]:
        """Return the column named "outcome" for each output batch of a call of ``map_batches``.

        ``rows`` contains the number of rows of each output batch. What the call spent, such as
        tokens, is divided equally among the rows. If the call failed, the field ``input`` of the
        column contains the rows of the input ``batch``; otherwise this field is null.
        """
        import pyarrow as pa

        total = max(1, sum(rows))
        usage = {unit: amount / total for unit, amount in (outcome.usage or {}).items()}
        struct = self.array([outcome._replace(usage=usage)])[0]
        inputs = pa.struct(list(batch.schema))
        fields = [*self._fields, pa.field(INPUT, inputs)]
        columns = []
        for count in rows:
            if outcome.error is None:
                input_rows = pa.nulls(count, inputs)
            else:
                input_rows = pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
            parts = [*pa.repeat(struct, count).flatten(), input_rows]
            columns.append(pa.StructArray.from_arrays(parts, fields=fields))
        return columns


def _text_of(error: BaseException) -> dict[str, str]:
    return {"type": type(error).__qualname__, "message": _message(error)}


def _message(error: BaseException) -> str:
    try:
        return str(error).encode(errors="replace").decode()
    except Exception:
        return f"<{type(error).__qualname__} without a message>"
