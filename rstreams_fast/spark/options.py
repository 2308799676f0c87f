"""The arguments that several stages take, ``lookup`` for example: their defaults and checks."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from rstreams_fast._checks import check_bool, check_choice
from rstreams_fast.calls.functions import (
    MOST_CALLS,
    check_positive_int,
    check_seconds,
    id_of,
)
from rstreams_fast.calls.lists.batching import Batching
from rstreams_fast.calls.policy import PolicyFunction
from rstreams_fast.calls.settings import CallSettings, PolicySettings
from rstreams_fast.spark.metrics import Metrics
from rstreams_fast.spark.runs import declare

__all__ = [
    "Bounds",
    "CallOptions",
    "Failures",
    "batching_of",
    "check_metrics",
    "column_names",
    "options_of",
    "parameter_index",
]

DEFAULT_BUFFER_BYTES: Final = 64 << 20
"""The default of ``Bounds(bytes)``: the maximum number of bytes of input batches per partition."""

MOST_AUTO: Final = 1024
"""The maximum of concurrent calls with ``concurrency="auto"``, if no ``Limit`` bounds them."""

PENDING_PER_CALL: Final = 64
"""The default of ``Bounds(rows)`` is ``concurrency`` times this number. So while one call is slow,
the calls of many later rows can start."""

MAX_DEFAULT_PENDING: Final = 65_536
"""The largest default of ``Bounds(rows)``. If running calls can have more rows, the default is the
number of these rows."""

MOST_BYTES: Final = 2**63 - 1
"""The largest ``Bounds(bytes)``: the stage counts the bytes in a signed 64-bit integer."""


def check_metrics(metrics: object) -> Metrics | None:
    """Return ``metrics`` if it is a ``Metrics`` or ``None``; else raise ``TypeError``."""
    if metrics is not None and not isinstance(metrics, Metrics):
        raise TypeError(f"metrics must be a Metrics, got {type(metrics).__name__}")
    return metrics


def column_names(name: str, value: Any) -> tuple[str, ...]:
    """Return one column name or several as a tuple. ``name`` names the argument in errors."""
    if isinstance(value, str):
        return (value,)
    with contextlib.suppress(TypeError):  # iterating a Column raises TypeError
        names = tuple(value)
        if all(isinstance(column, str) for column in names):
            return names
    raise TypeError(f"{name} must be a column's name or several names, got {value!r}")


@dataclass(frozen=True)
class Bounds:
    """How much a stage may hold in each running partition, and how long a partition may take.

    Args:
        rows: The maximum number of pending rows. A row is pending from the start of its call until
            its result is in the output; with ``serialize_by`` also while it waits for the call of
            an earlier row. So this number of rows may wait behind one slow call. Default: 64 x
            ``concurrency``, with ``batch`` 128 x ``concurrency`` x ``batch``. The default is at
            most 65 536, but never less than the number of rows in concurrent calls.
        bytes: The maximum number of bytes of input batches. One batch of any size is allowed. The
            next batch is read ahead only if there is room for another batch of the same size as the
            latest. The same number bounds the bytes of results that are not in the output yet.
            Default: 64 MiB.
        seconds: The maximum number of seconds for a partition; then the task fails with
            ``TimeoutError``. Default: no bound.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value.
    """

    rows: int | None = None
    bytes: int = DEFAULT_BUFFER_BYTES
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.rows is not None:
            check_positive_int("Bounds(rows)", self.rows, MOST_CALLS)
        check_positive_int("Bounds(bytes)", self.bytes, MOST_BYTES)
        if self.seconds is not None:
            check_seconds("Bounds(seconds)", self.seconds)


@dataclass(frozen=True)
class Failures:
    """What failed calls result in, and how many may fail: ``Failures("column", at_most=0.05)``.

    Args:
        become: A value of ``on_failure`` other than ``"raise"``.
        at_most: How many calls of a partition may fail before the task fails: a number (an ``int``)
            or a fraction of the calls (a ``float``). During the first hundred calls, the fraction
            is taken of a hundred calls. Default: all calls.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument has a wrong value.
    """

    become: str
    at_most: float | None = None

    def __post_init__(self) -> None:
        check_choice("Failures(become)", self.become, ("null", "drop", "column"))
        most = self.at_most
        if most is None:
            return
        if isinstance(most, bool) or not isinstance(most, int | float):
            raise TypeError(
                f"Failures(at_most) must be a number or a share, got {type(most).__name__}"
            )
        if most < 0 or (isinstance(most, float) and not most <= 1):
            raise ValueError(
                "Failures(at_most) must be an int >= 0, or a share of the calls up to 1.0, "
                f"got {most}"
            )


def batching_of(batch: int | Batching | None) -> Batching | None:
    """Return the argument ``batch`` as a ``Batching``; a number is the maximum of keys per call."""
    if batch is None or isinstance(batch, Batching):
        return batch
    return Batching(check_positive_int("batch", batch, MOST_CALLS))


@dataclass(frozen=True, repr=False)
class CallOptions(CallSettings):
    """The checked arguments of a stage, with the user's function and its policy."""

    using: Callable[[], Any] | None = None
    ordered: bool = True
    dedupe: bool = False
    on_null: str = "skip"
    on_failure: str = "raise"
    at_most: float | None = None
    """How many calls may fail: a number (``int``) or a fraction of the calls (``float``)."""
    bounds: Bounds = field(default_factory=Bounds)
    metrics: Metrics | None = None
    serialize_by: int | None = None
    """The index of a key column: rows with the same value in this column have one call at a time.
    """
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None

    def __post_init__(self) -> None:
        for word, what in (("using", "factory of a context manager"), ("loop_factory", "factory")):
            value = getattr(self, word)
            if value is not None and not callable(value):
                raise TypeError(
                    f"{word} must be a {what}, got {type(value).__name__}, which cannot be called"
                )
        super().__post_init__()
        if self.batch is not None:
            check_positive_int("batch", self.batch.rows, MOST_CALLS // self.concurrency)
        if self.serialize_by is not None and self.batch is not None:
            raise ValueError("serialize_by and batch: a list of keys has no turn of its own")
        check_bool("ordered", self.ordered)
        check_bool("dedupe", self.dedupe)
        check_choice("on_null", self.on_null, ("skip", "call"))
        if not isinstance(self.bounds, Bounds):
            raise TypeError(f"bounds must be a Bounds, got {type(self.bounds).__name__}")
        if (rows := self.bounds.rows) is not None and rows < self.running_rows:
            of = "" if self.batch is None else f" of {self.batch.rows} keys"
            raise ValueError(
                f"Bounds(rows={rows}) is less than concurrency={self.concurrency}{of}: so many "
                "calls could never run"
            )
        check_metrics(self.metrics)
        if self.using is not None:
            object.__setattr__(self, "called_id", f"{self.called_id} {id_of(self.using)}")
        if self.auto and not self.is_async:
            raise ValueError(f"concurrency='auto' needs an async fn: {self.label} runs on threads")

    def declare(self) -> None:
        """Tell the metrics that this stage is used, so that they show it even if it never runs."""
        if self.metrics is not None:
            declare(Path(self.metrics.path), self.label)

    @property
    def compares_keys(self) -> bool:
        """Whether the stage compares keys of rows: for ``dedupe``, a cache or ``serialize_by``."""
        return self.dedupe or self.policy.cache is not None or self.serialize_by is not None

    @property
    def window_rows(self) -> int:
        """The maximum number of rows whose call has started, and whose result is not output yet."""
        if self.bounds.rows is not None:
            return self.bounds.rows
        running = self.running_rows
        return max(running, min(PENDING_PER_CALL * running, MAX_DEFAULT_PENDING))


def options_of(
    fn: Callable[..., Any],
    *,
    on_failures: tuple[str, ...] = ("raise", "null", "column"),
    concurrency: int | Literal["auto"],
    batch: int | Batching | None = None,
    on_failure: str | Failures = "raise",
    bounds: Bounds | None = None,
    **words: Any,
) -> CallOptions:
    """Return the checked options of a stage. A ``Policy`` of ``fn`` becomes an option.

    ``on_failures`` are the values that the stage allows for ``on_failure``. ``words`` are further
    fields of ``CallOptions``, which are not changed.
    """
    policy = PolicySettings()
    if isinstance(fn, PolicyFunction):
        fn, policy = fn.fn, fn.policy
    failing = on_failure if isinstance(on_failure, Failures) else None
    become = on_failure if failing is None else failing.become
    check_choice("on_failure", become, on_failures)
    batching = batching_of(batch)
    bounds = Bounds() if bounds is None else bounds
    auto = isinstance(concurrency, str) and concurrency == "auto"
    if auto:
        pending = getattr(bounds, "rows", None)
        if pending is not None and batching is not None:
            # A call needs room for two lists of rows: its own list, and the list of the next call.
            pending = max(1, pending // (2 * batching.rows))
        most = (MOST_AUTO, policy.limit and policy.limit.concurrency, pending)
        concurrency = min(bound for bound in most if bound)
    return CallOptions(
        fn,
        policy,
        concurrency,  # type: ignore[arg-type]
        batching,
        as_outcomes=become == "column",
        auto=auto,
        on_failure=str(become),
        at_most=None if failing is None else failing.at_most,
        bounds=bounds,
        **words,
    )


def parameter_index(parameter: object, fn: Callable[..., Any], using: object) -> int | None:
    """Return, for ``serialize_by``, the index of the key that ``fn`` gets as ``parameter``."""
    if parameter is None:
        return None
    if not isinstance(parameter, str):
        raise TypeError(
            f"serialize_by must be the name of a parameter of fn, got {type(parameter).__name__}"
        )
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        found = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError) as unknown:
        raise ValueError(f"serialize_by: the parameters of fn are not known: {unknown}") from None
    names = [each.name for each in found if each.kind in kinds]
    # With ``using``, the first parameter of ``fn`` gets the client; only the others get keys.
    keys = names if using is None else names[1:]
    if parameter not in keys:
        raise ValueError(
            f"serialize_by: {parameter!r} is no parameter of fn that gets a key; "
            f"there are {', '.join(keys) or 'none'}"
        )
    return keys.index(parameter)
