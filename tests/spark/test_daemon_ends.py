"""How jobs end under the drop-in daemon: killed, cancelled, failed, cut short; and what is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rstreams_fast.spark.versions import spark_version
from tests.spark.daemons import HEAD, run_job

__all__ = ["run_job"]

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

BOTH = (
    HEAD
    + """
spark = session("local[1,2]", conf={{"spark.python.worker.reuse": "{reuse}"}})
context = spark.sparkContext

def both(fn):
    async def suspends(x):
        await asyncio.sleep(0)
        return fn(x)
    for arrow in (False, True):
        for made in (fn, suspends):
            yield f"{{made.__name__}}-{{arrow}}", udf(made, "long", useArrow=arrow)
"""
)

ENDS = (
    BOTH
    + """
def dies(marker):
    def fn(x):
        if x == 50 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x
    return fn

def last(x):
    if x == 95:
        raise ValueError("in the last row")
    return x

numbers = spark.range(0, 96, 1, 1)
for number, (kind, column) in enumerate(both(last)):
    marker = work / f"died-{{number}}"
    killed = list(both(dies(marker)))[number][1]
    assert [x for (x,) in numbers.select(killed("id")).collect()] == list(range(96)), kind
    assert marker.exists()
    assert "ValueError: in the last row" in failure(numbers.select(column("id")))
    assert len(numbers.select(column("id")).limit(3).collect()) == 3

def hangs(marker):
    def begin():  # eight calls do so at once
        with marker.open("a") as file:
            file.write(f"{{os.getpid()}}\\n")
    def fn(x):
        begin()
        threading.Event().wait()
    async def suspends(x):
        begin()
        await asyncio.Event().wait()
    return fn, suspends

for arrow in (False, True):
    for number in (0, 1):
        marker = work / f"begun-{{arrow}}-{{number}}"
        column = udf(hangs(marker)[number], "long", useArrow=arrow)
        failures = []
        def job():
            try:
                numbers.select(column("id")).collect()
            except Exception as error:
                failures.append(error)
        thread = threading.Thread(target=job)
        thread.start()
        wait_until(lambda: marker.exists() and "\\n" in marker.read_text(), "a call", timeout=60)
        context.cancelAllJobs()
        thread.join(60)
        assert "cancelled" in str(failures[0]).lower(), failures
        pid = int(marker.read_text().split()[0])
        def ended():
            try:
                process = psutil.Process(pid)
                return process.status() == psutil.STATUS_ZOMBIE or process.num_threads() == 1
            except psutil.NoSuchProcess:
                return True
        wait_until(ended, f"the end of the calls {{arrow}} {{number}}", timeout=60)

(threads,) = context.parallelize([0], 1).map(lambda _: threading.active_count()).collect()
assert threads == 1, threads
spark.stop()
wait_until(lambda: not workers(), "the end of all workers", timeout=60)
"""
)

FLAT = (
    BOTH
    + """
def held(x):
    process = psutil.Process()
    kib = process.memory_info().rss >> 10
    return f"{{process.pid}} {{kib}} {{process.num_fds()}} {{len(gc.get_objects())}}"

async def aheld(x):
    await asyncio.sleep(0)
    return held(x)

for arrow, fn in ((False, held), (True, aheld)):
    column = udf(fn, "string", useArrow=arrow)
    rows = spark.range(0, 500, 1, 500).select(column("id")).collect()
    found = [tuple(map(int, row[0].split())) for row in rows]
    pids, kib, files, objects = zip(*found)
    assert len(set(pids)) == 1
    assert max(kib[-50:]) < max(kib[50:100]) + (4 << 10), kib
    assert max(files[-50:]) <= max(files[50:100]), files
    # Spark looks at them after each task; without a freeze they are 50 000 and more.
    assert max(objects[-50:]) < 20_000, objects
"""
)


CONNECT = """
import asyncio, os, threading
os.environ["RSTREAMS_FAST_UDF_CONCURRENCY"] = "8"
from pyspark.sql.functions import udf
from tests.spark.conftest import session
from tests.spark.daemons import failure

conf = {
    "spark.python.daemon.module": "rstreams_fast.spark.daemon",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4",
    "spark.python.udf.pipelined.enabled": "true",
}
spark = session(conf=conf, remote=True)

def functions():  # pickled by value
    def meet(x):
        threading.__dict__.setdefault("_meeting", threading.Barrier(8)).wait(60)
        return x

    async def doubled(x):
        await asyncio.sleep(0.001)
        return 2 * x

    def last(x):
        if x == 95:
            raise ValueError("in the last row")
        return x

    return meet, doubled, last

meet, doubled, last = functions()
numbers = spark.range(0, 96, 1, 1)
assert "connect" in type(numbers).__module__
for arrow in (False, True):
    met, double, fails = (udf(fn, "long", useArrow=arrow) for fn in (meet, doubled, last))
    rows = numbers.select(met("id"), double("id")).collect()
    assert [tuple(row) for row in rows] == [(x, 2 * x) for x in range(96)]
    assert len(numbers.select(double("id")).limit(3).collect()) == 3
    assert "ValueError: in the last row" in failure(numbers.select(fails("id")))
"""


@pytest.mark.parametrize(
    "script",
    [ENDS.format(reuse="true"), ENDS.format(reuse="false"), FLAT.format(reuse="true")],
    ids=["reused", "not reused", "500 partitions"],
)
def test_nothing_is_left(run_job: Callable[[str], str], script: str) -> None:
    run_job(script)


@pytest.mark.skipif(spark_version() < (4, 0), reason="3.5 comes without its server")
def test_spark_connect(run_job: Callable[[str], str]) -> None:
    run_job(CONNECT)
