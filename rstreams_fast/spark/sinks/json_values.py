"""Values of rows as JSON, for types that JSON lacks."""

from __future__ import annotations

import base64
import datetime as dt
from decimal import Decimal
from typing import Any

__all__ = ["json_value"]


def json_value(value: Any) -> Any:
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
