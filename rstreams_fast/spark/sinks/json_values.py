"""Writes values of rows as JSON, also values of types that JSON lacks."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from typing import Any

__all__ = ["json_text"]


def json_text(value: Any, **words: Any) -> str:
    """Return ``value`` as JSON, with the arguments ``words`` of ``json.dumps``."""
    try:
        return json.dumps(value, default=_json_value, **words)
    except TypeError:  # json.dumps asks no default for the keys of a map
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
    """Return ``value``, whose type JSON lacks, as a text or a number."""
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"a value of {type(value).__name__} has no form in JSON")
