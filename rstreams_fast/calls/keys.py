"""Texts for keys: the same in every process, whatever Python and pyarrow."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

__all__ = ["PLAIN_KEYS", "checked_key", "text_of"]

PLAIN_KEYS: Final = frozenset({bool, bytes, float, int, str, type(None)})
"""Types of which ``ascii`` says all, and always did: what ``repr`` escapes changes with Unicode."""


def text_of(value: Any) -> str:
    """Return a text that tells ``value`` from others. ``TypeError``: it is no plain value."""
    if type(value) in PLAIN_KEYS:
        return ascii(value)
    for kind, text in _OTHERS:
        if isinstance(value, kind):
            return text(value)
    raise TypeError(f"a key of {type(value).__name__} has no form that lasts")


def checked_key(key: tuple[Any, ...], label: str) -> tuple[Any, ...]:
    """Return the ``key`` of a call of ``label``. ``TypeError``: it is not made of plain values."""
    for place, value in enumerate(key):
        try:
            text_of(value)
        except TypeError as refused:
            raise TypeError(
                f"{label}: the cache or journal knows a call by plain values, and argument "
                f"{place + 1} has none: {refused}; say what it is known by with Policy(key=...)"
            ) from None
    return key


def _instant(value: dt.datetime) -> str:
    if value.tzinfo is not None:  # whatever zone the session has
        value = value.astimezone(dt.UTC)
    return f"t{value.isoformat()}"


def _items(value: dict[Any, Any]) -> str:
    pairs = sorted((text_of(key), text_of(item)) for key, item in value.items())
    return f"{{{', '.join(map(': '.join, pairs))}}}"


_OTHERS: Final[tuple[tuple[type, Callable[[Any], str]], ...]] = (
    (dict, _items),
    (list, lambda value: f"[{', '.join(map(text_of, value))}]"),
    (tuple, lambda value: f"({', '.join(map(text_of, value))})"),
    (dt.datetime, _instant),
    (dt.date, lambda value: f"d{value.isoformat()}"),
    (dt.time, lambda value: f"c{value.isoformat()}"),
    (dt.timedelta, lambda value: f"i{value.days}:{value.seconds}:{value.microseconds}"),
    (Decimal, lambda value: f"n{value}"),
    (uuid.UUID, lambda value: f"u{value}"),
)
