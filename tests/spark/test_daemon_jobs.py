"""Jobs with no line changed, under the drop-in daemon; and what bears no calls at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.spark.daemons import HEAD, run_job

__all__ = ["run_job"]

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

JOB = (
    HEAD
    + """
from pyspark import TaskContext

spark = session(
    "local[2]",
    concurrency=CONCURRENCY,
    conf={"spark.sql.execution.arrow.maxRecordsPerBatch": "4"},
)
context, overlap = spark.sparkContext, CONCURRENCY is not None

def meet(x):  # eight at once, across batches of four
    threading.__dict__.setdefault("_meeting", threading.Barrier(8)).wait(60)
    return x

def which(x):  # eight ask at once for what takes a while to load
    threading.__dict__.setdefault("_meeting", threading.Barrier(8)).wait(60)
    return id(large.value)

def names(x, y=0):
    calls.add(1)
    return f"{x}-{y}-{known.value.get(x)}-{TaskContext.get().partitionId()}"

def day(x):
    return datetime.date(2020, 1, 1) + datetime.timedelta(days=x)

def fails(x):
    if x >= 90:
        raise ValueError(f"at {x}")
    return x

def ends(x):
    raise StopIteration("gone")

async def doubled(x):
    await asyncio.sleep(0.001)
    return None if x == 5 else 2 * x

attempts = set()

@rs.Policy(timeout=60, retry=rs.Retry(1, backoff=0))
async def second(x):
    await asyncio.sleep(0)
    if x not in attempts:
        attempts.add(x)
        raise ValueError("the first attempt")
    return x

async def cancelled(x):
    await asyncio.sleep(0)
    raise KeyError("in a coroutine")

async def alone(x):
    return any(type(o).__name__ == "Step" and o.returns_awaitable for o in gc.get_objects())

def message(column):
    return failure(numbers.select(column))

numbers = spark.range(0, 96, 1, 1)
knows_names = spark.version >= "4"
for arrow in (False, True):
    calls, known = context.accumulator(0), context.broadcast({1: "one"})
    def made(fn, returns):
        return udf(fn, returns, useArrow=arrow)
    more = made(lambda x: x + 1, "long")
    double, zero = made(doubled, "long"), made(lambda: 7, "long")
    rows = numbers.select(
        made(names, "string")("id", y=more("id")) if knows_names
        else made(names, "string")("id", more("id")),
        made(day, "date")(col("id").cast("int")), zero(),
        more(more("id")), *([made(meet, "long")("id")] if overlap else ["id"]),
    ).collect()
    assert [tuple(row) for row in rows] == [
        (f"{x}-{x + 1}-{'one' if x == 1 else None}-0", day(x), 7, x + 2, x) for x in range(96)
    ], rows[:3]
    assert calls.value == 96
    if overlap:
        large = context.broadcast(list(range(1_000_000)))
        assert len(set(numbers.select(made(which, "long")("id")).collect())) == 1
    rows = numbers.select(double("id"), double(more("id")), more("id"), "id").collect()
    def twice(x):
        return None if x == 5 else 2 * x
    assert [tuple(row) for row in rows] == [(twice(x), twice(x + 1), x + 1, x) for x in range(96)]
    rows = numbers.select(made(second, "long")("id")).collect()
    assert [x for (x,) in rows] == list(range(96))
    assert numbers.limit(1).select(made(alone, "boolean")("id")).first()[0]
    text = message(made(fails, "long")("id"))
    assert "ValueError: at 90" in text, text
    assert "in fails" in text.split("Traceback (most recent call last):")[1].splitlines()[1], text
    text = message(made(ends, "long")("id"))
    assert "STOP_ITERATION_OCCURRED" in text, text
    text = message(made(cancelled, "long")("id"))
    assert "KeyError: 'in a coroutine'" in text, text
    assert len(numbers.select(more("id")).limit(3).collect()) == 3
    assert len(spark.range(0, 6, 1, 6).select(more("id")).collect()) == 6
(frozen,) = context.parallelize([0], 1).map(lambda _: gc.get_freeze_count()).collect()
assert frozen > 10_000, frozen
threads = context.parallelize(range(4), 4).map(lambda _: threading.active_count()).collect()
assert threads == [1] * 4, threads
"""
)


BATCHES = (
    HEAD
    + """
spark = session(
    conf={
        "spark.sql.execution.arrow.maxRecordsPerBatch": "4",
        "spark.executorEnv.RSTREAMS_FAST_UDF_BATCHES": "4",
        "spark.executorEnv.RSTREAMS_FAST_UDF_METRICS": str(work / "figures"),
    }
)
numbers = spark.range(0, 96, 1, 1)

def met(count):
    threading.__dict__.setdefault(f"_of_{count}", threading.Barrier(count)).wait(60)

def four_batches(column):
    met(4)
    return column

def eight_calls(x):
    met(8)
    return x

async def suspends(x):
    return x

def fails(column):
    raise ValueError("in a batch")

failed = set()

@rs.Policy(retry=rs.Retry(1, backoff=0))
def second(x):
    if x in failed:
        return x
    failed.add(x)
    raise ValueError("the first attempt")

@rs.Policy(timeout=0.01, retry=rs.Retry(1, backoff=0))
async def slow_at_first(x):
    if x not in failed:
        failed.add(x)
        await asyncio.Event().wait()
    return x

columns = {"four_batches": F.pandas_udf(four_batches, "long"), "suspends": F.udf(suspends, "long")}
columns["eight_calls"] = F.udf(eight_calls, "long")
columns["second"] = F.udf(second, "long")
columns["slow_at_first"] = F.udf(slow_at_first, "long")
kinds = [F.pandas_udf]
if hasattr(F, "arrow_udf"):
    columns["four_batches "] = F.arrow_udf(four_batches, "long")
    kinds.append(F.arrow_udf)
for name, column in columns.items():
    rows = numbers.select("id", column("id")).collect()
    assert [tuple(row) for row in rows] == [(x, x) for x in range(96)], name
for made in kinds:
    assert "ValueError: in a batch" in failure(numbers.select(made(fails, "long")("id")))

found = rs.Metrics("figures").by_stage()
figures = {
    name: (of.state, of.rows_in, of.rows_out, of.calls, of.max_running, of.concurrency)
    for name, of in found.items()
}
rows = 96 * len(kinds)
assert figures.pop("four_batches") == ("done", rows, rows, rows // 4, 4, 4)
assert figures.pop("eight_calls") == ("done", 96, 96, 96, 8, 8)
assert figures.pop("suspends")[:4] == ("done", 96, 96, 96)
assert figures.pop("second")[:4] == figures.pop("slow_at_first")[:4] == ("done", 96, 96, 96)
assert (found["second"].retries, found["second"].timeouts) == (96, 0), found["second"]
of = found["slow_at_first"]
assert of.retries >= 96 and of.timeouts == of.retries, of
state, rows_in, rows_out = figures.pop("fails")[:3]
assert (state, rows_out) == ("failed", 0) and 0 < rows_in <= 16 * len(kinds), found
# Each of 96 calls, eight at once, waits for 0.01 seconds.
assert found["slow_at_first"].waiting_function > 0.06, found["slow_at_first"]
assert found["slow_at_first"].attempts == 96 + of.retries, of
assert (found["second"].attempts, found["eight_calls"].attempts) == (192, 96), found
for of in (found["second"], found["slow_at_first"], found["eight_calls"]):
    assert sum(of.latencies.values()) == of.attempts and of.latency(0.5) < 60, of
assert found["fails"].failure_types == {"ValueError": found["fails"].failures}, found
assert not figures, figures
assert found["eight_calls"].max_buffered_rows == 96 and not found["eight_calls"].buffered_rows

def profiled(x):
    return x

if spark.version >= "4":  # its profilers
    spark.conf.set("spark.sql.pyspark.udf.profiler", "perf")
    made = (F.udf(profiled, "long"), F.udf(profiled, "long", useArrow=True))
    made += (F.pandas_udf(profiled, "long"),)
    for column, calls in zip(made, (96, 96, 24), strict=True):
        assert [x for (_, x) in numbers.select("id", column("id")).collect()] == list(range(96))
        of_last = max(spark._profiler_collector._perf_profile_results.items())[1]
        counts = [of[1] for (_, _, name), of in of_last.stats.items() if name == "profiled"]
        assert counts == [calls], of_last.stats
"""
)


HANGING = (
    HEAD
    + """
spark = session(conf={"spark.executorEnv.RSTREAMS_FAST_UDF_BATCHES": "4"})
numbers = spark.range(0, 3000, 1, 1)

def begins(name):
    with (work / name).open("a") as file:
        file.write(".")

def begun(name):
    return len((work / name).read_text())

def fails_or_hangs(name):  # what hangs does not end by itself
    def plain(x):
        begins(name)
        if x == 0:
            raise ValueError("in row 0")
        threading.Event().wait()
    async def suspends(x):
        begins(name)
        if x == 0:
            raise ValueError("in row 0")
        await asyncio.Event().wait()
    def column(values):
        begins(name)
        if 0 in list(values):
            raise ValueError("in row 0")
        threading.Event().wait()
    return plain, suspends, column

made = {}
for kind in ("plain", "arrow", "plain-async", "arrow-async", "pandas"):
    plain, suspends, column = fails_or_hangs(kind)
    fn = suspends if kind.endswith("async") else plain
    made[kind] = (
        F.pandas_udf(column, "long") if kind == "pandas"
        else F.udf(fn, "long", useArrow=kind.startswith("arrow"))
    )
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
for kind, column in made.items():
    assert "ValueError: in row 0" in failure(numbers.select(column("id")))
    assert begun(kind) <= 8, (kind, begun(kind))

def hangs_later(name):
    def plain(x):
        if x < 1000:
            return x * "x"
        begins(name)
        threading.Event().wait()
    async def suspends(x):
        if x < 1000:
            return x * "x"
        begins(name)
        await asyncio.Event().wait()
    return plain, suspends

for number, kind in enumerate(("limit", "limit-async")):
    fn = hangs_later(kind)[number]
    frame = numbers.select(F.udf(fn, "string", useArrow=False)("id").alias("y"))
    assert [y for (y,) in frame.where("y >= ''").limit(3).collect()] == ["", "x", "xx"], kind
    wait_until(lambda: not workers(threads=2), f"the end of the calls of {kind}", timeout=60)
    assert not (work / kind).exists() or begun(kind) <= 8
"""
)


SCRIPT = (
    HEAD
    + """
spark = session(
    conf={
        "spark.sql.execution.arrow.maxRecordsPerBatch": "40",
        "spark.executorEnv.RSTREAMS_FAST_UDF_BATCHES": "4",
        "spark.executorEnv.RSTREAMS_FAST_UDF_ONE_AT_A_TIME": "connected, single,whole",
        "spark.executorEnv.RSTREAMS_FAST_UDF_COMPARE": "20",
        "spark.python.use.daemon": "true",
    }
)

def functions():  # pickled by value
    def connected(x):  # its connection refuses other threads than the one that made it
        if not hasattr(json, "connection"):
            json.connection = sqlite3.connect(":memory:")
        return json.connection.execute("select 2 * ?", (x,)).fetchone()[0]

    async def single(x):
        json.single = getattr(json, "single", 0) + 1
        most = json.single
        await asyncio.sleep(0.001)
        json.single -= 1
        return most

    def whole(column):
        assert threading.current_thread() is threading.main_thread()
        return column

    def plus(x):
        return x + 1

    return connected, single, whole, plus

connected, single, whole, plus = functions()
numbers = spark.range(0, 100, 1, 1)
for arrow in (False, True):
    made = [F.udf(fn, "long", useArrow=arrow) for fn in (connected, single, plus)]
    rows = numbers.select(*(column("id") for column in made)).collect()
    assert [tuple(row) for row in rows] == [(2 * x, 1, x + 1) for x in range(100)], rows[:3]
    rows = numbers.select(made[0]("id")).collect()
    assert [x for (x,) in rows] == [2 * x for x in range(100)]
rows = numbers.select(F.pandas_udf(whole, "long")("id")).collect()
assert [x for (x,) in rows] == list(range(100))
"""
)

DIFFERS = (
    SCRIPT[: SCRIPT.index("def functions")]
    + """
def functions():
    def disturbed(x):  # returns whether another call runs; the first row waits for one
        state = json.__dict__.setdefault("state", {"running": 0, "turns": 0})
        state["running"] += 1
        state["turns"] += x == 0
        if x == 0:
            until = time.monotonic() + (0.2 if state["turns"] == 1 else 30)
            while state["running"] < 2 and time.monotonic() < until:
                time.sleep(0.001)
        elif state["turns"] == 2:
            time.sleep(0.05)
        met = state["running"] > 1
        state["running"] -= 1
        return met
    def plus(x):
        return x + 1
    return disturbed, plus

disturbed, plus = functions()
numbers = spark.range(0, 100, 1, 1)
for arrow in (False, True):
    columns = [F.udf(fn, kind, useArrow=arrow)("id") for fn, kind in
               ((disturbed, "boolean"), (plus, "long"))]
    rows = numbers.select(*columns).collect()
    assert rows[0][0] and [x for (_, x) in rows] == list(range(1, 101))
    forgets = F.udf(lambda _: bool(json.__dict__.pop("state", 0)), "boolean")
    spark.range(1).select(forgets("id")).collect()

def counted(column):
    with (work / "counted").open("a") as file:
        file.write(f"{len(column)} ")
    return column

rows = numbers.select(F.pandas_udf(counted, "long")("id")).collect()
assert [x for (x,) in rows] == list(range(100))
# A pandas_udf is not compared, so it is called once for each batch.
assert sorted((work / "counted").read_text().split()) == ["20", "40", "40"]
"""
)


BYPASSED = (
    SCRIPT[: SCRIPT.index("def functions")].replace(
        '"spark.python.use.daemon": "true"', '"spark.python.use.daemon": "false"'
    )
    + """
plus = F.udf(rs.Policy(retry=rs.Retry(1))(lambda x: x + 1), "long", useArrow=False)
numbers = spark.range(0, 100, 1, 1)
assert [x for (x,) in numbers.select(plus(plus("id"))).collect()] == list(range(2, 102))
"""
)


#: Scripts, and how often their processes say what on stderr.
SCRIPTS: dict[str, tuple[str, dict[str, int]]] = {
    "overlapping": (JOB.replace("CONCURRENCY", "8"), {}),
    "not asked": (JOB.replace("CONCURRENCY", "None"), {}),
    "batches overlap, the driver sees figures": (BATCHES, {}),
    "jobs end though other calls hang": (HANGING, {}),
    "functions that are named are called one at a time": (SCRIPT, {}),
    "the log says which functions bear no calls at once": (
        DIFFERS,
        {
            "comparison of disturbed: ": 2,
            "comparison of plus: the first 20 rows are the same one by one": 2,
            "The first is row 0: one by one False, with 8 calls at once True": 2,
        },
    ),
    "a worker without the daemon says so": (BYPASSED, {"(spark.python.use.daemon=false)": 1}),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_job_is_as_with_stock(name: str, run_job: Callable[[str], str]) -> None:
    script, said = SCRIPTS[name]
    told = run_job(script)
    assert {line: told.count(line) for line in said} == said, told[-6000:]
