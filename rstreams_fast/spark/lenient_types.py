"""``lenient``: a declared type that takes what services give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Lenient", "declared_in", "lenient"]


@dataclass(frozen=True)
class Lenient:
    """A declared type or schema, and that results become it leniently. Made by ``lenient``."""

    declared: Any


def lenient(declared: Any) -> Lenient:
    """Declare a type or a schema that results need not fit exactly, as those of a service that
    adds fields.

    In each row and each struct, fields that are not declared are left out, and missing ones are
    null. A text in ISO 8601 becomes a declared timestamp or date; without an offset a timestamp is
    one of the session's zone, as a ``datetime`` without one is. All else is as exact as without.

    It is for results that are dicts, data classes, or models of msgspec, pydantic or attrs, and for
    lists of such that ``map_batches`` gets. The types say what a column is, so the leniency stands
    with them: other columns of a job stay exact.

    ```python
    import rstreams_fast.spark as rs


    async def forecast(city):
        return {"temp": 21.5, "at": "2026-03-04T05:06:07Z", "source": "nobody declared it"}


    output = rs.lenient("temp double, wind double, at timestamp")
    forecasts = rs.enrich(forecast, on="city", output=output)
    ```

    Args:
        declared: What ``returns`` of ``lookup``, ``output`` of ``enrich`` and the schema of
            ``map_batches`` take: a DDL string, a type of Spark or Arrow, a schema.

    Returns:
        What these take in its place.
    """
    return Lenient(declared)


def declared_in(declared: Any) -> Any:
    """Return a declared type without its leniency."""
    return declared.declared if isinstance(declared, Lenient) else declared
