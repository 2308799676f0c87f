"""The report of a write, and the counts of its partitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["COUNT_FIELDS", "PartitionCounts", "WriteReport", "counts_struct", "sum_of"]


@dataclass(frozen=True)
class WriteReport:
    """The result of ``write``. It counts only task attempts that succeeded.

    Attributes:
        rows: Rows that were written.
        retried: How often a row was sent again, because its call or the row itself had failed. The
            number is too small by 1 for each dead row that reached its deadline before it was sent.
        dead: Failed rows that were written to ``dead_letters``.
        calls: Calls of the sink: HTTP requests, or copies into PostgreSQL.
        bytes: The size of the rows in bytes, in Arrow's format.
        seconds: Seconds of the whole write.
        repeated: Whether an earlier run of the same job or batch was committed. Then this run wrote
            nothing.
    """

    rows: int = 0
    retried: int = 0
    dead: int = 0
    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0
    repeated: bool = False

    def _repr_html_(self) -> str:
        shown = [
            (name, f"{value:,}" if isinstance(value, int) else f"{value:.1f}")
            for name, value in asdict(self).items()
            if not isinstance(value, bool)
        ]
        rows = "".join(
            f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' for name, value in shown
        )
        again = "<p>An earlier run has written these rows.</p>" if self.repeated else ""
        return f"<table><tbody>{rows}</tbody></table>{again}"


@dataclass
class PartitionCounts:
    """The counts of one partition.

    ``token`` identifies what the commit must keep: the staged rows in PostgreSQL, or the
    dead-letter file.
    """

    rows: int = 0
    retried: int = 0
    dead: int = 0
    calls: int = 0
    bytes: int = 0
    token: str = ""

    def batch(self) -> pa.RecordBatch:
        """Return the counts as a record batch of one row, which is the output of the partition."""
        import pyarrow as pa

        columns = [pa.array([value]) for value in asdict(self).values()]
        return pa.RecordBatch.from_arrays(columns, list(asdict(self)))


COUNT_FIELDS: Final = ("rows", "retried", "dead", "calls", "bytes")


def counts_struct() -> StructType:
    """Return the Spark type of the row in which a partition reports its counts."""
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    fields = [StructField(name, LongType()) for name in COUNT_FIELDS]
    return StructType([*fields, StructField("token", StringType())])


def sum_of(parts: Iterable[Any]) -> WriteReport:
    """Return the report of a write, from the rows in which its partitions report their counts."""
    rows = list(parts)
    sums: dict[str, Any] = {name: sum(row[name] for row in rows) for name in COUNT_FIELDS}
    return WriteReport(**sums)
