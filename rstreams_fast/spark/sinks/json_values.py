"""Converts values of rows to JSON, also values whose types JSON lacks, such as dates and bytes."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from typing import Any

__all__ = ["json_text"]


def json_text(value: Any, **words: Any) -> str:
    """Return ``value`` as JSON. ``words`` are further arguments of ``json.dumps``."""
    try:
        return json.dumps(value, default=_json_value, **words)
    except TypeError:  # json.dumps applies ``default`` to values, not to keys
        return json.dumps(_with_text_keys(value), default=_json_value, **words)


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_with_text_keys(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key if isinstance(key, str | int | float) else str(_json_value(key)): _with_text_keys(one)
        for key, one in value.items()
    }


def _json_value(value: Any) -> Any:
    """Return a value whose type JSON lacks as a text or a number."""
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"a value of {type(value).__name__} has no form in JSON")
