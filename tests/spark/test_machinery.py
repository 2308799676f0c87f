"""Trouble of the machinery around the calls fails the task by name, and is no row's failure."""

from __future__ import annotations

from collections.abc import Callable

FULL_DISK = """
import resource, tempfile, uuid
import pyarrow as pa
import rstreams_fast.spark as rs

before = resource.getrlimit(resource.RLIMIT_FSIZE)

async def fn(k):
    if k == 5:  # no file can grow any more, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    return "x" * 500_000 if k >= 5 else "x"

def run(on_failure, **words):
    stage = rs.lookup(rs.Policy(**words)(fn), pa.string(), concurrency=1, on_failure=on_failure)
    batch = pa.RecordBatch.from_pydict({"k": pa.array(range(20), pa.int64())})
    try:
        print(sum(batch.num_rows for batch in stage.as_map_fn()(iter([batch]))), "rows")
    except Exception as error:
        print(type(error).__name__, error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

for on_failure in ("null", "column"):
    limit = rs.Limit(uuid.uuid4().hex, concurrency=4, rate=1e4)
    run(on_failure, limit=limit, retry=rs.Retry(3))
    no_failures = rs.Failures(on_failure, at_most=0)
    run(no_failures, journal=rs.Journal(tempfile.mkdtemp(), version="1"))
"""


def test_a_full_disk_is_no_failure_of_a_row(run_script: Callable[..., str]) -> None:
    told = run_script(FULL_DISK).splitlines()
    assert len(told) == 4
    for limit, journal in zip(told[::2], told[1::2], strict=True):
        assert limit.startswith("LimitLost the file of the limit ")
        assert "File too large" in limit
        assert journal.startswith("StageError the journal cannot keep an answer: ")
        assert "File too large" in journal
