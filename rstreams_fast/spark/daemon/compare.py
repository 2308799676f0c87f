"""Compares the results of overlapping calls with the results of the same calls made one by one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

__all__ = ["compared_rows", "report_difference", "report_failure"]

MOST_CHARACTERS: Final = 80
"""The most characters of a result that a message shows."""


def compared_rows(
    names: Sequence[str], one_by_one: Sequence[Any], rows: Iterable[Any], calls: int
) -> Iterator[Any]:
    """Yield ``rows``, and report on stderr whether the first rows equal ``one_by_one``.

    ``rows`` come from overlapping calls; ``calls`` is the number of calls at once. ``one_by_one``
    has the first rows, from calls that did not overlap. If there are several ``names`` of UDFs, a
    row is a tuple of their results.
    """
    overlapped: list[Any] = []
    try:
        for row in rows:
            if len(overlapped) < len(one_by_one):
                overlapped.append(row)
                if len(overlapped) == len(one_by_one):
                    for name, serial, parallel in _by_function(names, one_by_one, overlapped):
                        report_difference(name, serial, parallel, calls)
            yield row
    except Exception as failed:
        if len(overlapped) < len(one_by_one):
            report_failure(names, failed, calls)
        raise


def _by_function(
    names: Sequence[str], one_by_one: Sequence[Any], overlapped: Sequence[Any]
) -> Iterator[tuple[str, Sequence[Any], Sequence[Any]]]:
    if len(names) == 1:
        yield names[0], one_by_one, overlapped
        return
    yield from zip(names, zip(*one_by_one, strict=True), zip(*overlapped, strict=True), strict=True)


def report_difference(
    name: str, one_by_one: Sequence[Any], overlapped: Sequence[Any], calls: int
) -> None:
    """Print whether two lists of results of the UDF ``name`` differ, and the first difference."""
    pairs = list(zip(one_by_one, overlapped, strict=True))
    differ = [row for row, pair in enumerate(pairs) if not _same(*pair)]
    if not differ:
        _print(name, f"the first {len(pairs)} rows are the same one by one and {calls} at once.")
        return
    serial, parallel = pairs[differ[0]]
    _print(
        name,
        f"{len(differ)} of the first {len(pairs)} rows differ. The first is row {differ[0]}: one "
        f"by one {_short(serial)}, with {calls} calls at once {_short(parallel)}. Either its calls "
        "disturb each other, or its results differ from call to call.",
    )


def report_failure(names: Sequence[str], failed: BaseException, calls: int) -> None:
    """Print that the first rows failed with overlapping calls, but not with calls one by one."""
    _print(
        ", ".join(names),
        f"one by one the first rows did not fail, with {calls} calls at once: {_short(failed)}.",
    )


def _print(name: str, text: str) -> None:
    effects = "Its calls for these rows, and their effects, were made twice."
    print(f"rstreams_fast: comparison of {name}: {text} {effects}", file=sys.stderr, flush=True)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."


def _same(one: Any, other: Any) -> bool:
    with suppress(Exception):  # for example, ``==`` of two numpy arrays has no truth value
        if bool(one == other):
            return True
    # Results with equal reprs count as the same: two NaN are unequal, but have equal reprs.
    return type(one) is type(other) and repr(one) == repr(other)
