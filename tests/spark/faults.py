"""``make faults``: what goes wrong on a real cluster, what becomes of it, and the table of it.

A driver, in a process of its own, is told the names of faults and makes them happen, on a
standalone cluster, against a service that counts. ``test_faults.py`` says a name a test; `main`
runs all of them at full size, and writes ``docs/faults.md`` from what the driver tells.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psutil
from py4j.protocol import Py4JError

import rstreams_fast.spark as rs
from tests.helpers import TestThread, start_thread, wait_until
from tests.spark.cluster import Cluster, marked, python_workers
from tests.spark.conftest import session
from tests.spark.service import Service, ServiceProcess, asking
from tests.spark.stages import made

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "faults.md"
PARTITIONS: Final = "FAULTS_PARTITIONS"
"""How many there are where there are many; 10 000 for ``make faults``, CI has no time for them."""

ROWS: Final = 400
LIMIT: Final = 6
DISK_MB: Final = 8
SLOW: Final = 0.02
CONF: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "2",
    # said, because a later session of a JVM takes over what an earlier one was told
    "spark.speculation": "false",
    "spark.python.worker.reuse": "true",
    "spark.sql.shuffle.partitions": "20",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
}


Conf = Mapping[str, str]


class Run:
    """What a fault has to work with."""

    def __init__(self, mark: str, local: str, port: int, control: int) -> None:
        self.mark = mark
        self.local = Path(local)
        self.service = Service(port, control)
        self.conf: Conf | None = None
        self.scope = "job"
        self._limits = 0

    def start(self, conf: Conf) -> None:
        """Have a session with this configuration."""
        if conf == self.conf:
            return
        self.stop()
        told = {**CONF, "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"], **conf}
        self.spark: SparkSession = session(os.environ["RSTREAMS_MASTER"], usual=told)
        self.conf = conf
        names_of_threads(self.spark)  # the executors have started then

    def stop(self) -> None:
        if self.conf is not None:
            self.spark.stop()
            self.conf = None
            wait_until(lambda: not executors(self.mark), "the end of the executors")
            wait_until(lambda: not daemons(self.mark), "the end of the Python workers")

    def words(self, **words: Any) -> dict[str, Any]:
        self._limits += 1
        limit = rs.Limit(f"faults {os.getpid()} {self._limits}", LIMIT, scope=self.scope)
        return {"limit": limit, **words}

    def column(self, **words: Any) -> Column:
        look = made(rs.lookup, asking(self.service.port), "long", **self.words(**words))
        return look("id").alias("y")

    def frame(self, rows: int = ROWS, partitions: int = 8, **words: Any) -> DataFrame:
        return self.spark.range(0, rows, 1, partitions).select("id", self.column(**words))

    def collecting(self, frame: DataFrame, calls: int = 40) -> TestThread[Any]:
        """Collect in a thread; return it when the service has had so many calls."""
        running = start_thread(frame.collect)
        wait_until(
            lambda: self.service.tell()["calls"] >= calls or not running.is_alive(),
            "the calls",
        )
        return running


def failing(action: Callable[[], list[Any]], *words: str) -> str:
    """Check that the error says all these words."""
    try:
        rows = action()
    except Exception as error:
        told = str(error)
        missing = [word for word in words if word not in told]
        if missing:
            raise AssertionError(f"the error does not say {missing}") from error
        return f"an error: `{words[0]}`"
    raise AssertionError(f"no error, but {len(rows)} rows")


def right(rows: list[Any], expected: int = ROWS) -> str:
    """Check that every row is there once, with its own answer."""
    assert sorted((row.id, row.y) for row in rows) == [(k, 2 * k) for k in range(expected)]
    return "right rows"


@contextmanager
def worker_in_a_call(run: Run) -> Iterator[Any]:
    """Give a worker whose call the service has counted, and answers after the block at soonest."""
    run.service.tell(mode="silent")
    found: list[Any] = []

    def look() -> bool:
        # Of a connection that was only made nothing is called for again.
        counted = run.service.tell()["callers"]
        for worker in python_workers(run.mark):
            with suppress(psutil.Error):
                ports = [connection.laddr.port for connection in worker.net_connections("tcp4")]
                if any(port in counted for port in ports):
                    found.append(worker)
        return bool(found)

    wait_until(look, "a worker in a call")
    yield found[0]
    run.service.tell(mode="right")


def executors(mark: str) -> list[psutil.Process]:
    return _running(mark, lambda words: "Executor" in " ".join(words))


def daemons(mark: str) -> list[psutil.Process]:
    return _running(mark, lambda words: "pyspark.daemon" in words)


def _running(mark: str, is_one: Callable[[list[str]], bool]) -> list[psutil.Process]:
    found = []
    for process in marked(mark):
        with suppress(psutil.Error):  # it has ended since
            if is_one(process.cmdline()):
                found.append(process)
    return found


Happens = Callable[[Run], str]


class Fault(NamedTuple):
    """One row of the table."""

    happens: Happens
    conf: Conf
    calls: Callable[[int], bool]
    """Whether the service may have seen so many."""


FAULTS: dict[str, Fault] = {}


def fault(
    name: str, calls: Callable[[int], bool] = lambda n: n == ROWS, conf: Conf = MappingProxyType({})
) -> Callable[[Happens], Happens]:
    def of(happens: Happens) -> Happens:
        FAULTS[name] = Fault(happens, conf, calls)
        return happens

    return of


def again(calls: int) -> bool:
    """Whether all rows were called for, and at most the lost ones again."""
    return ROWS <= calls <= 2 * ROWS


def some_again(calls: int) -> bool:
    return again(calls) and calls > ROWS


OWN: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.python.worker.reuse": "false",
}
"""What takes a session of its own."""


@fault("speculation", some_again, OWN)
def _(run: Run) -> str:
    run.service.tell(stall={"0": 60.0})
    return right(run.frame().collect())


@fault("`spark.python.worker.reuse=false`", again, OWN)
def _(run: Run) -> str:
    told = right(run.frame().collect())
    wait_until(lambda: not python_workers(run.mark), "the end of every worker")
    return told


def _killed(run: Run, scope: str = "job", whole_executor: bool = False) -> str:
    run.scope = scope
    run.service.tell(seconds=SLOW)
    running = run.collecting(run.frame())
    ids = {executor.pid for executor in executors(run.mark)}
    with worker_in_a_call(run) as worker:
        (executor,) = (each for each in worker.parents() if each.pid in ids)
        (executor if whole_executor else worker).kill()
    return right(running.result(60))


fault("Python worker killed in a call", some_again)(_killed)
fault('Python worker killed, `scope="executor"`', some_again)(
    lambda run: _killed(run, scope="executor")
)
fault("executor killed", some_again)(lambda run: _killed(run, whole_executor=True))


@fault("service stopped", lambda n: n < ROWS)
def _(run: Run) -> str:
    run.service.tell(seconds=SLOW)
    frame = run.frame()
    stopping = start_thread(lambda: _stop(run))
    told = failing(frame.collect, "ConnectionRefusedError", "the key ")
    stopping.result()
    return told


def _stop(run: Run) -> None:
    wait_until(lambda: run.service.tell()["calls"] >= 40, "the calls")
    run.service.tell(mode="stopped")


@fault("service restarted", again)
def _(run: Run) -> str:
    run.service.tell(seconds=SLOW)
    running = run.collecting(run.frame(retry=rs.Retry(30, backoff=0.1)))
    run.service.tell(mode="stopped")
    time.sleep(0.5)
    run.service.tell(mode="right")
    return right(running.result(60))


@fault("service slow", lambda n: n >= ROWS)
def _(run: Run) -> str:
    run.service.tell(seconds=20)
    running = run.collecting(run.frame(timeout=0.5, retry=rs.Retry(100, backoff=0.1)), 2 * LIMIT)
    run.service.tell(seconds=0.001)
    return right(running.result(60))


@fault("service wrong", lambda n: n < ROWS)
def _(run: Run) -> str:
    run.service.tell(mode="wrong")
    return failing(run.frame().collect, "ValueError: invalid literal for int()", "the key ")


@fault("service silent", lambda n: n < ROWS)
def _(run: Run) -> str:
    run.service.tell(mode="silent")
    return failing(
        run.frame(timeout=0.3).collect, "TimeoutError: no answer within 0.3 s", "the key "
    )


@fault("task cancelled", lambda n: n < ROWS)
def _(run: Run) -> str:
    context = run.spark.sparkContext

    def collect() -> Any:
        context.setJobGroup("faults", "to be cancelled", True)
        return run.frame().collect()

    run.service.tell(mode="silent")
    running = start_thread(collect)
    wait_until(lambda: run.service.tell()["inside"] == LIMIT, "the calls")
    context.cancelJobGroup("faults")
    return failing(running.result, "cancelled")


@fault("LIMIT", lambda n: n < 100_000)
def _(run: Run) -> str:
    enrich = made(rs.enrich, asking(run.service.port), on="id", output="y long", **run.words())
    rows = run.spark.range(0, 1_000_000, 1, 4).transform(enrich).limit(5).collect()
    return right(rows, 5)


@fault("disk full", lambda n: n >= ROWS)
def _(run: Run) -> str:
    with rs.Metrics(str(run.local)) as metrics:
        with full(run) as words:
            told = failing(run.frame(metrics=metrics).repartition(3).collect, words)
        wait_until(lambda: calls_are_over(run), "the end of the failed job's calls")
        right(run.frame().repartition(3).collect())
    return f"{told}; with room again right rows"


@contextmanager
def full(run: Run) -> Iterator[str]:
    """While the block runs, no executor can write to its disk; gives the words of the error."""
    if run.local.is_mount():
        rest = run.local / "rest"
        with rest.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 12))
        yield "No space left on device"
        rest.unlink()
        return
    for executor in executors(run.mark):
        resource.prlimit(executor.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    yield "File too large"
    for executor in executors(run.mark):
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(executor.pid, resource.RLIMIT_FSIZE, unlimited)


@fault("AQE coalesces partitions")
def _(run: Run) -> str:
    from pyspark.sql import functions as f

    keys = run.spark.range(0, ROWS, 1, 4).groupBy("id").count()
    rows = keys.select("id", run.column(), f.spark_partition_id().alias("p")).collect()
    assert len({row.p for row in rows}) < 20
    return right(rows)


@fault("many partitions of a row each", lambda n: n == partitions())
def _(run: Run) -> str:
    count, begin = partitions(), time.monotonic()
    told = right(run.frame(count, count).collect(), count)
    each = (time.monotonic() - begin) / count
    return f"{told}; {count} partitions, {1000 * each:.0f} ms each"


def partitions() -> int:
    return int(os.environ.get(PARTITIONS, "50"))


@fault("skew: all rows in one of 8 partitions")
def _(run: Run) -> str:
    keys = run.spark.range(0, 8 * ROWS, 1, 8).where(f"id < {ROWS}")
    return right(keys.select("id", run.column()).collect())


CTRL_C: Final = "Ctrl-C at the driver"


@fault(CTRL_C, lambda n: n < ROWS)
def _(run: Run) -> str:
    run.service.tell(mode="silent")

    def interrupt() -> None:
        wait_until(lambda: run.service.tell()["inside"] == LIMIT, "the calls")
        os.killpg(0, signal.SIGINT)

    interrupting = start_thread(interrupt)
    try:
        run.frame().collect()
    except Py4JError as interrupted:
        if type(interrupted) is not Py4JError:
            raise
        raise KeyboardInterrupt from interrupted  # Spark's answer came before the interrupt
    finally:
        interrupting.result()
    raise AssertionError("no KeyboardInterrupt")


# -- the driver ------------------------------------------------------------------------------------


def happen(run: Run, name: str) -> dict[str, Any]:
    """Let it happen; return what became of it, with ``failed`` if that is wrong."""
    row = FAULTS[name]
    told: dict[str, Any] = {"fault": name}
    try:
        run.start(row.conf)
        run.scope = "job"
        run.service.tell(mode="right", seconds=0.001, stall={}, reset=True)
        told["outcome"] = row.happens(run)
        told.update(check(run, row))
    except Exception:
        told["failed"] = traceback.format_exc()
        run.stop()  # so that the next one begins anew
    return told


def check(run: Run, row: Fault) -> dict[str, Any]:
    """Check what is left, and the service's own count."""
    wait_until(lambda: calls_are_over(run), "the end of the calls")
    counts = run.service.tell()
    assert 0 < counts["most"] <= LIMIT, counts
    assert row.calls(counts["calls"]), counts
    return {"calls": counts["calls"], "most": counts["most"]}


def calls_are_over(run: Run) -> bool:
    """Whether no call is made while plain tasks run: of a job that ends early some tasks end later,
    and the service learns of it later than they do.
    """
    before = run.service.tell()["calls"]
    left = {name for name in names_of_threads(run.spark) if name.startswith("rstreams")}
    assert not left, f"threads are left: {left}"
    now = run.service.tell()
    return not now["inside"] and now["calls"] == before


def names_of_threads(spark: SparkSession) -> set[str]:
    """Return the names of the threads that plain tasks find in their workers."""

    def look(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"name": [t.name for t in threading.enumerate()]})

    return {name for (name,) in spark.range(0, 8, 1, 8).mapInArrow(look, "name string").collect()}


def serve() -> None:
    """Let the faults happen that standard input names; tell of each in a line."""
    # A job in the background of a shell is started with it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    mark, local, port, control = sys.argv[1:]
    run = Run(mark, local, int(port), int(control))
    for line in sys.stdin:
        print(json.dumps(happen(run, line.strip())), flush=True)
    run.stop()


class Driver:
    """The cluster, the service and the driver, for the process that judges."""

    def __init__(self, folder: Path) -> None:
        self._local = folder / "local"
        self._local.mkdir()
        mounting = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(self._local)]
        subprocess.run(mounting, check=False, capture_output=True)  # else `full` does without
        self._log = folder / "driver.log"
        self.cluster = Cluster(folder)
        self.service = ServiceProcess()
        self._process: subprocess.Popen[str] | None = None

    def happen(self, name: str) -> dict[str, Any]:
        """Let the fault happen; return what the driver tells of it."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{name}\n")
        process.stdin.flush()
        if line := process.stdout.readline():
            told: dict[str, Any] = json.loads(line)
            return told
        status = self.end()
        wait_until(lambda: self.service.tell()["inside"] == 0, "the end of the calls")
        told = {"fault": name, "outcome": "the driver ends", **self.service.tell()}
        if status != -signal.SIGINT or name != CTRL_C:
            told["failed"] = f"the driver ended: {status}\n{self._log.read_text()[-4000:]}"
        return told

    def _start(self) -> subprocess.Popen[str]:
        service = self.service
        words = [self.cluster.mark, self._local, service.port, service.control]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.spark.faults", *map(str, words)],
                env={**self.cluster.environment, "RSTREAMS_MASTER": self.cluster.master},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                cwd=ROOT,
            )

    def end(self) -> int:
        """End the driver; when it is gone, nothing that it had started may be left."""
        process, self._process = self._process, None
        if process is None:
            return 0
        with process:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
            status = process.wait(60)
        wait_until(lambda: not self.cluster.processes(), "the end of all processes")
        return status

    def left(self) -> list[str]:
        """What is left of files, beside the files of limits and what Spark logs.

        A worker that is killed while it starts a relay leaves an empty lock file, which the next
        relay of the host removes.
        """
        folders = (self.cluster.temporary, self._local)
        found = (path for folder in folders for path in folder.rglob("*") if path.is_file())
        return [str(path) for path in found if not _may_be_left(path)]

    def close(self) -> None:
        try:
            self.end()
        finally:
            self.cluster.close()
            self.service.close()
            if self._local.is_mount():
                subprocess.run(["umount", self._local], check=False)


def _may_be_left(path: Path) -> bool:
    if path.parent.name.startswith("rstreams-relays"):
        return path.suffix == ".lock" and not path.stat().st_size
    return path.parent.name.startswith("rstreams-limits")


HEAD: Final = """\
| fault | what becomes of it | calls | at once |
|---|---|---|---|
"""


def main() -> int:
    """Let all happen, at full size; write the table. The exit status is 1 if one went wrong."""
    os.environ.setdefault(PARTITIONS, "10000")
    rows, failed = [], []
    with tempfile.TemporaryDirectory() as folder:
        driver = Driver(Path(folder))
        try:
            for name in FAULTS:
                told = driver.happen(name)
                print(told.get("failed") or told, flush=True)
                failed += [name] * ("failed" in told)
                rows.append(
                    f"| {name} | {told.get('outcome')} | {told.get('calls')} | {told.get('most')} |"
                )
            driver.end()
            left = driver.left()
        finally:
            driver.close()
    print("\n".join([*left, *failed]))
    if left or failed:
        return 1
    text = PAGE.read_text(encoding="utf-8")
    before, _, after = text.partition(HEAD)
    after = after.partition("\n\n")[2]
    PAGE.write_text(f"{before}{HEAD}" + "\n".join(rows) + f"\n\n{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve()
    else:
        sys.exit(main())
