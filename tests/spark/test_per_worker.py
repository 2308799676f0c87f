"""``rs.PerWorker``: what a worker opens once, and closes when it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.helpers import run_python, run_threads
from tests.spark.stages import V, values


class Opened:
    """A factory that counts."""

    def __init__(self) -> None:
        self.entered = self.left = 0

    @contextmanager
    def __call__(self) -> Iterator[int]:
        self.entered += 1
        try:
            yield 100 * self.entered
        finally:
            self.left += 1


async def added(opened: int, k: int) -> int:
    return opened + k


def added_by_thread(opened: int, k: int) -> int:
    return opened + k


def added_to_batch(opened: int, batch: pa.RecordBatch) -> list[dict[str, int]]:
    return [{"v": opened + k} for k in batch["k"].to_pylist()]


async def added_to_batch_async(opened: int, batch: pa.RecordBatch) -> list[dict[str, int]]:
    return added_to_batch(opened, batch)


def looked_up(factory: Any) -> rs.Lookup:
    return rs.lookup(added, pa.int64(), using=rs.PerWorker(factory))


def test_all_partitions_and_stages_of_a_process_have_the_same() -> None:
    factory = Opened()
    using = rs.PerWorker(factory)
    for _ in range(2):
        for stage in (
            rs.lookup(added, pa.int64(), using=using),
            rs.enrich(added_by_thread, on="k", output=V, using=using),
            rs.map_batches(added_to_batch, V, using=using),
            rs.map_batches(rs.Policy(retry=rs.Retry(1))(added_to_batch), V, using=using),
            rs.map_batches(added_to_batch_async, V, using=using),
        ):
            assert values(stage, range(3)) == [100, 101, 102]
    assert (factory.entered, factory.left) == (1, 0)
    assert values(looked_up(factory), [0]) == [200]


def test_a_factory_that_raises_is_asked_again() -> None:
    factory, failures = Opened(), [OSError("no card"), ValueError("no memory")]

    def fails() -> Any:
        if failures:
            raise failures.pop(0)
        return factory()

    stage = looked_up(fails)
    for error in list(failures):
        with pytest.raises(type(error), match=str(error)) as raised:
            values(stage, [0])
        assert "raised by the context manager given by 'using'" in raised.value.__notes__[0]
    assert values(stage, [0]) == [100]


def test_partitions_that_begin_together_open_one() -> None:
    factory = Opened()
    using = rs.PerWorker(factory)
    run = lambda: values(rs.lookup(added, pa.int64(), using=using), [0])  # noqa: E731
    assert run_threads([run] * 8) == [[100]] * 8
    assert factory.entered == 1


def test_what_is_no_plain_context_manager_is_refused() -> None:
    class Async:
        async def __aenter__(self) -> int:
            return 1

        async def __aexit__(self, *_: object) -> None: ...

    for factory, kind in ((Async, "Async"), (list, "list")):
        with pytest.raises(TypeError, match=f"PerWorker: its factory gave {kind}, which is no"):
            values(looked_up(factory), [0])


def test_what_is_plain_for_its_looks_alone_is_refused_with_a_word() -> None:
    class Session:  # as some clients are, which say so when they are entered
        def __enter__(self) -> None:
            raise TypeError("Use async with instead")

        def __exit__(self, *_: object) -> None: ...

        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *_: object) -> None: ...

    with pytest.raises(TypeError, match="Use async with") as refused:
        values(looked_up(Session), [0])
    assert "an async manager belongs to the loop of a partition" in str(refused.value.__notes__)


ENDS = """
import atexit, os, sys
import pyarrow as pa
import rstreams_fast.spark as rs

class Client:
    def __enter__(self):
        return self
    def __exit__(self, *told):
        print("left", told, flush=True)
        raise OSError("already gone")

stage = rs.lookup(lambda client, k: k, pa.int64(), using=rs.PerWorker(Client)).as_map_fn()
batch = pa.RecordBatch.from_pydict({"k": [1, 2]})
print(*(len(batch) for batch in stage([batch])), flush=True)  # or the child would print it, too
if os.fork() == 0:
    sys.exit()  # leaves nothing: it is not its own
os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the test forks")
def test_it_is_left_once_at_the_end_of_the_process_that_opened_it() -> None:
    assert run_python("-c", ENDS).stdout == "2\nleft (None, None, None)\n"


IN_SPARK = """
import os, sys
from collections import Counter
from pathlib import Path
import rstreams_fast.spark as rs
from tests.helpers import wait_until
from tests.spark.conftest import session

spark = session(conf={"spark.python.worker.reuse": sys.argv[1]})
log = Path(sys.argv[0]).parent / "log"
log.touch()

def make(log):
    class Client:
        def say(self, what):
            with open(log, "a") as file:
                file.write(f"{what} {os.getpid()}\\n")
        def __enter__(self):
            self.say("entered")
            return self
        def __exit__(self, *told):
            self.say("left")
    def fn(client, k):
        if k == 77:
            raise ValueError("unlucky")
        client.say("used")
        return k
    return Client, fn

Client, fn = make(str(log))
look = rs.lookup(fn, "long", using=rs.PerWorker(Client))

def said(what):
    return Counter(line.split()[1] for line in log.read_text().splitlines() if what in line)

def run(most):
    return spark.range(0, most, 1, 4).select(look("id").alias("v")).collect()

for _ in range(3):
    assert [row.v for row in run(40)] == list(range(40))
assert set(said("entered").values()) == {1}, said("entered")
assert said("used").keys() == said("entered").keys()
if sys.argv[1] == "true":
    assert len(said("used")) <= 2 and not said("left")
    try:
        run(80)
    except Exception as error:
        assert "unlucky" in str(error)
    # That worker has ended, and left what it had; others go on with theirs.
    wait_until(lambda: said("left"), "the end of the worker whose task failed")
    assert [row.v for row in run(40)] == list(range(40))
else:
    assert len(said("used")) == 12
    wait_until(lambda: said("left") == said("entered"), "the end of all workers")
assert set(said("left").values()) == {1}
print("as told")
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("reuse", ["true", "false"])
def test_a_worker_of_sparks_opens_it_once_and_leaves_it(
    run_script: Callable[..., str], reuse: str
) -> None:
    script = IN_SPARK.replace("sys.argv[1]", repr(reuse))
    assert run_script(script, 280).endswith("as told\n")


def test_a_factory_may_open_what_another_one_opens() -> None:
    pool = rs.PerWorker(Opened())

    @contextmanager
    def model() -> Iterator[int]:
        with pool() as opened:
            yield opened + 1

    assert values(looked_up(model), [0, 1]) == [101, 102]
