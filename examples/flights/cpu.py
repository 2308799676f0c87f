"""Processor time per row with a look-up that answers at once: one process for each backend.

The parent says which way to go, one line at a time, and gets seconds of processor time per row: so
the ways of several processes can take turns. The stage is driven as Spark drives it, by Arrow
batches.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from examples.flights.rivals import answer_at_once, expected, gather_batches, plain_loop

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["GATHER", "LOOP", "OURS", "measure"]

OURS: Final = "ours"
GATHER: Final = "gather"
LOOP: Final = "loop"


def measure(way: str, rows: int, batch_rows: int) -> float:
    """Return seconds of processor time per row, all threads of this process; checks the result."""
    import pyarrow as pa

    batches = [
        pa.RecordBatch.from_pydict(
            {"key": pa.array(range(start, min(start + batch_rows, rows)), pa.int64())}
        )
        for start in range(0, rows, batch_rows)
    ]
    run = _WAYS[way]()
    begin = time.process_time()
    results = list(run(iter(batches)))
    seconds = time.process_time() - begin
    values = [value for result in results for value in result.column("value").to_pylist()]
    if values != [expected(key) for key in range(rows)]:
        raise AssertionError(f"{way} gave wrong results")
    return seconds / rows


Run = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def _ours() -> Run:
    import pyarrow as pa

    import rstreams_fast.spark as rs

    return rs.lookup(answer_at_once, pa.int64()).as_map_fn()


def _with(way: Callable[[Iterator[list[int]]], Iterator[list[int]]]) -> Run:
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        held: list[Any] = []

        def keys() -> Iterator[list[int]]:
            for batch in batches:
                held.append(batch)
                yield batch.column("key").to_pylist()

        for values in way(keys()):
            columns = [*held.pop().columns, pa.array(values, pa.int64())]
            yield pa.RecordBatch.from_arrays(columns, names=["key", "value"])

    return run


_WAYS: Final[dict[str, Callable[[], Run]]] = {
    OURS: _ours,
    GATHER: lambda: _with(lambda keys: gather_batches(answer_at_once, keys, None)),
    LOOP: lambda: _with(plain_loop),
}


def main() -> int:
    """Serve the parent: a line ``WAY ROWS BATCH_ROWS`` in, a number out."""
    for line in sys.stdin:
        way, rows, batch_rows = line.split()
        print(measure(way, int(rows), int(batch_rows)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
