"""A program for an environment that has the package and nothing else (tests/test_install.py).

It runs a stream, a queue and a ring, and the programs of the page that it is given; then it prints
for each optional part what its first use says.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path

import rstreams_fast as rsf
import rstreams_fast.spark as rs
from rstreams_fast import queues


async def look(key: int) -> int:
    return key


class Tabular:
    __arrow_c_stream__ = None


PARTS: dict[str, Callable[[], object]] = {
    "to_numpy": lambda: rsf.range_(3).to_numpy(),
    "from_numpy": lambda: rsf.from_numpy(None),
    "publish_records_on": lambda: rsf.range_(3).publish_records_on("f8"),
    "RecordRing": lambda: rsf.RecordRing("f8", 4),
    "to_arrow": lambda: rsf.empty().to_arrow(),
    "from_arrow": lambda: rsf.from_arrow(Tabular()),
    "reactivex": lambda: importlib.import_module("rstreams_fast.interop.reactivex"),
    "rsocket": lambda: importlib.import_module("rstreams_fast.interop.rsocket"),
    "tck.plugin": lambda: importlib.import_module("rstreams_fast.tck.plugin"),
    "lookup": lambda: rs.lookup(look, "int")("id"),
    "lookup.as_map_fn": lambda: rs.lookup(look, "int").as_map_fn("id"),
    "enrich": lambda: rs.enrich(look, on="id", output="v int").as_map_fn(),
    "map_batches": lambda: rs.map_batches(print, "v int").as_map_fn(),
    "stage": lambda: rs.stage(print, "v int").as_map_fn(),
    "journal": lambda: rs.Journal("/nowhere", version="1").compact(),
    "daemon": lambda: importlib.import_module("rstreams_fast.spark.daemon.__main__").main(),
    "report": lambda: importlib.import_module("rstreams_fast.spark.report"),
}


def main() -> None:
    """Run what needs nothing, then print a line for each part that needs something."""
    assert rsf.range_(3).map(lambda n: n * n).publish_on().to_list() == [0, 1, 4]
    queue = queues.Queue[int](2)
    queue.put(1)
    assert queue.get(timeout=1) == 1
    ring = rsf.SpscRing[int](4)
    assert ring.offer_many([1, 2, 3]) == 3
    page = Path(sys.argv[1]).read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for program in programs:
        if "rs." not in program:  # those are for Spark
            exec(compile(program, sys.argv[1], "exec"), {"__name__": "__main__"})
    print("package", Path(rsf.__file__).parent, sys.prefix)
    for name, use in PARTS.items():
        try:
            use()
        except ImportError as missing:
            print(name, missing)
        else:
            print(name, "needs nothing")


if __name__ == "__main__":
    main()
