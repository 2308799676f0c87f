"""The result of a write: counts of its partitions, and the report of the whole write."""

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
    """The result of ``write``. Only task attempts that succeeded are counted.

    Attributes:
        rows: Rows that were written.
        retried: How often a row was sent again, because its call or the row itself had failed. Too
            small by 1 for each dead row that reached its deadline before it was sent.
        dead: Rows that are in ``dead_letters``.
        calls: Calls of the sink: HTTP requests, or copies into PostgreSQL.
        bytes: Bytes of the rows in Arrow's form.
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
    """The counts of one partition. ``token`` identifies its rows that wait for the commit."""

    rows: int = 0
    retried: int = 0
    dead: int = 0
    calls: int = 0
    bytes: int = 0
    token: str = ""

    def batch(self) -> pa.RecordBatch:
        """Return the counts as a batch of one row: the output of the partition."""
        import pyarrow as pa

        columns = [pa.array([value]) for value in asdict(self).values()]
        return pa.RecordBatch.from_arrays(columns, list(asdict(self)))


COUNT_FIELDS: Final = ("rows", "retried", "dead", "calls", "bytes")


def counts_struct() -> StructType:
    """Return Spark's type of the rows in which partitions report their counts."""
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    fields = [StructField(name, LongType()) for name in COUNT_FIELDS]
    return StructType([*fields, StructField("token", StringType())])


def sum_of(parts: Iterable[Any]) -> WriteReport:
    """Return the report of all partitions. ``parts`` has the row of each partition."""
    rows = list(parts)
    sums: dict[str, Any] = {name: sum(row[name] for row in rows) for name in COUNT_FIELDS}
    return WriteReport(**sums)
