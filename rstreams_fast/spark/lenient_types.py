"""``lenient``: declares a type for results that may have extra fields or lack fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Lenient", "declared_in", "lenient"]


@dataclass(frozen=True)
class Lenient:
    """A declared type or schema that results need not match exactly; made by ``lenient``."""

    declared: Any


def lenient(declared: Any) -> Lenient:
    """Declare a type or a schema that results need not match exactly, if a service may add fields.

    In each row and each nested struct, undeclared fields are dropped, and missing fields become
    null. For a declared timestamp or date, a string in ISO 8601 is converted. A string without an
    offset is in the session's time zone, as in Spark's ``cast``. All other conversions are the same
    as without ``lenient``; in particular, a ``datetime`` without a zone is in the time zone of the
    worker's process.

    ``lenient`` applies to results that are dicts, data classes, or models of msgspec, pydantic or
    attrs. In ``map_batches`` it also applies to lists of such results. Only the columns in
    ``declared`` are lenient: other columns of a job keep the exact checks.

    ```python
    import rstreams_fast.spark as rs


    async def forecast(city):
        return {"temp": 21.5, "at": "2026-03-04T05:06:07Z", "source": "nobody declared it"}


    output = rs.lenient("temp double, wind double, at timestamp")
    forecasts = rs.enrich(forecast, on="city", output=output)
    ```

    Args:
        declared: A DDL string, a type of Spark or Arrow, or a schema.

    Returns:
        A value for the argument ``returns`` of ``lookup``, ``output`` of ``enrich`` or ``schema``
        of ``map_batches``.
    """
    return Lenient(declared)


def declared_in(declared: Any) -> Any:
    """Return the type inside a ``Lenient``; return any other ``declared`` unchanged."""
    return declared.declared if isinstance(declared, Lenient) else declared
