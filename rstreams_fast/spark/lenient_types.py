"""``lenient``: a declared type for results that do not fit it exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Lenient", "declared_in", "lenient"]


@dataclass(frozen=True)
class Lenient:
    """A declared type or schema that results need not fit exactly, made by ``lenient``."""

    declared: Any


def lenient(declared: Any) -> Lenient:
    """Declare a type or a schema that results need not fit exactly: a service may add fields.

    In each row and each struct, fields that are not declared are left out, and missing fields are
    null. A text in ISO 8601 becomes a declared timestamp or date. A text without an offset is in
    the session's time zone, as in Spark's ``cast``. All other conversions are as exact as without
    ``lenient``: a ``datetime`` without a zone is in the time zone of the worker's process.

    ``lenient`` applies to results that are dicts, data classes, or models of msgspec, pydantic or
    attrs, and to lists of these, which ``map_batches`` takes. Only the columns that it declares are
    lenient: other columns of a job stay exact.

    ```python
    import rstreams_fast.spark as rs


    async def forecast(city):
        return {"temp": 21.5, "at": "2026-03-04T05:06:07Z", "source": "nobody declared it"}


    output = rs.lenient("temp double, wind double, at timestamp")
    forecasts = rs.enrich(forecast, on="city", output=output)
    ```

    Args:
        declared: A value for ``returns`` of ``lookup``, ``output`` of ``enrich`` or the schema of
            ``map_batches``: a DDL string, a type of Spark or Arrow, or a schema.

    Returns:
        A value for the same argument.
    """
    return Lenient(declared)


def declared_in(declared: Any) -> Any:
    """Return the type that ``lenient`` declares, or ``declared`` itself if it is not lenient."""
    return declared.declared if isinstance(declared, Lenient) else declared
