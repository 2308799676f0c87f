"""The arguments of stages, ``lookup`` for example: their meaning, defaults and checks."""

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
"""The most bytes of input batches in one partition. One batch of any size is always allowed."""

MOST_AUTO: Final = 1024
"""The most calls at once of ``concurrency="auto"``, if no ``Limit`` bounds them."""

PENDING_PER_CALL: Final = 64
"""The default capacity of the window is ``concurrency`` times this number. So many rows may wait
behind a slow call."""

MAX_DEFAULT_PENDING: Final = 65_536
"""The largest default capacity of the window, unless ``concurrency`` is larger."""

MOST_BYTES: Final = 2**63 - 1
"""The most bytes that a byte budget can count."""


def check_metrics(metrics: object) -> Metrics | None:
    """Return ``metrics`` if it is a ``Metrics`` or ``None``; else raise ``TypeError``."""
    if metrics is not None and not isinstance(metrics, Metrics):
        raise TypeError(f"metrics must be a Metrics, got {type(metrics).__name__}")
    return metrics


def column_names(name: str, value: Any) -> tuple[str, ...]:
    """Return ``value``, one column name or several, as a tuple; ``name`` is the argument's name."""
    if isinstance(value, str):
        return (value,)
    with contextlib.suppress(TypeError):  # a Column raises a TypeError when it is iterated
        names = tuple(value)
        if all(isinstance(column, str) for column in names):
            return names
    raise TypeError(f"{name} must be a column's name or several names, got {value!r}")


@dataclass(frozen=True)
class Bounds:
    """How much a stage holds in each partition at work, and how long a partition may take.

    Args:
        rows: The most rows whose call has started, or waits for its turn (``serialize_by``), and
            whose result is not in the output yet: so many rows may wait behind one slow call.
            Default: 64 x ``concurrency``, with ``batch`` 128 x ``concurrency`` x ``batch``; at most
            65 536, but never fewer than can run at once.
        bytes: The most bytes of input batches. One batch of any size is allowed; the next is read
            ahead only if a batch of the same size still fits. The same number bounds the bytes of
            results that are not in the output yet. Default: 64 MiB.
        seconds: Seconds for a partition; then the task fails with ``TimeoutError``. Default: no
            bound.

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
    """The result of failed calls, and how many may fail: ``Failures("column", at_most=0.05)``.

    Args:
        become: A value of ``on_failure`` other than ``"raise"``.
        at_most: The most failed calls of a partition before the task fails: a number (an ``int``)
            or a share of the calls (a ``float``). In the first hundred calls a share counts as a
            share of a hundred calls. Default: all calls.

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
    """Return the argument ``batch`` as a ``Batching``; a number is the most keys of a call."""
    if batch is None or isinstance(batch, Batching):
        return batch
    return Batching(check_positive_int("batch", batch, MOST_CALLS))


@dataclass(frozen=True, repr=False)
class CallOptions(CallSettings):
    """The checked arguments of a stage, with the function and its policy."""

    using: Callable[[], Any] | None = None
    ordered: bool = True
    dedupe: bool = False
    on_null: str = "skip"
    on_failure: str = "raise"
    at_most: float | None = None
    """How many calls may fail, or which share."""
    bounds: Bounds = field(default_factory=Bounds)
    metrics: Metrics | None = None
    serialize_by: int | None = None
    """The index of a key column: calls with the same value there are made one after another."""
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
        """Tell the metrics that a frame has this stage: they show it even if it never runs."""
        if self.metrics is not None:
            declare(Path(self.metrics.path), self.label)

    @property
    def compares_keys(self) -> bool:
        """Whether keys are compared: for ``dedupe``, a cache or ``serialize_by``."""
        return self.dedupe or self.policy.cache is not None or self.serialize_by is not None

    @property
    def window_rows(self) -> int:
        """The most rows whose call has started, and whose result is not in the output yet."""
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
    """Return the options of a stage. ``fn`` may have a ``Policy``, which becomes an option.

    ``on_failures`` are the values that ``on_failure`` may have. ``words`` are further options.
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
            pending = max(1, pending // (2 * batching.rows))  # see running_rows
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
    """Return the index of the key that the ``parameter`` of ``fn`` gets, for ``serialize_by``."""
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
    # With ``using`` the first parameter gets the client, and no key.
    keys = names if using is None else names[1:]
    if parameter not in keys:
        raise ValueError(
            f"serialize_by: {parameter!r} is no parameter of fn that gets a key; "
            f"there are {', '.join(keys) or 'none'}"
        )
    return keys.index(parameter)
