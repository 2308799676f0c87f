"""``Cache``: of a process, of a host; its failures, and the bytes that it keeps."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import os
import signal
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast as rsf
import rstreams_fast.spark as rs
from tests.fresh import forget_caches
from tests.helpers import run_python, start_thread, wait_until
from tests.spark.conftest import temporary_in
from tests.spark.processes import OtherProcess
from tests.spark.stages import made, rows
from tests.spark.test_cache import RESULTS

np = pytest.importorskip("numpy")
lmdb = pytest.importorskip("lmdb")
BOTH = pytest.mark.parametrize("scope", ["process", "executor"])


@pytest.fixture(autouse=True)
def place(temporary: Path) -> Iterator[Path]:
    yield temporary
    forget_caches()


def folders(place: Path) -> list[Path]:
    """Return the folders of the host's caches; each has a file."""
    return list(place.glob("rstreams-cache-*/*"))


class Poison(Exception):
    def __init__(self, key: int) -> None:
        super().__init__(key)


WORKERS = r"""
import asyncio, multiprocessing, os, random, sys, time
import rstreams_fast as rsf

workers, keys = int(sys.argv[1]), int(sys.argv[2])
cache = rsf.Cache(entries=10_000, scope="executor")
calls = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
asked = {}

@rsf.Policy(cache=cache)
async def fetch(key):
    await asyncio.sleep(0.002)
    os.write(calls, f"{key} asked {asked[key]}\n".encode())
    return {"key": key, "text": "x" * 100}

async def work(seed):
    order = list(range(keys))
    random.Random(seed).shuffle(order)
    left = iter(order)

    async def some():
        for key in left:
            asked[key] = time.monotonic()
            assert (await fetch(key))["key"] == key
            os.write(calls, f"{key} ended {time.monotonic()}\n".encode())

    await asyncio.gather(*(some() for _ in range(16)))

def worker(seed):
    asyncio.run(work(seed))

fork = multiprocessing.get_context("fork")
processes = [fork.Process(target=worker, args=(seed,)) for seed in range(workers)]
for process in processes:
    process.start()
for process in processes:
    process.join()
print(*[process.exitcode for process in processes], flush=True)
"""


@pytest.mark.slow
def test_the_workers_of_a_host_pay_once_for_a_key(tmp_path: Path) -> None:
    workers, keys, log = 16, 5880, tmp_path / "calls"
    with OtherProcess(WORKERS, str(workers), str(keys), str(log)) as process:
        assert process.line().split() == ["0"] * workers
    asked, ended = dict[str, list[float]](), dict[str, float]()
    for line in log.read_text().splitlines():
        key, what, when = line.split()
        if what == "asked":
            asked.setdefault(key, []).append(float(when))
        else:
            ended[key] = min(ended.get(key, float("inf")), float(when))
    assert len(asked) == keys
    late = [key for key, times in asked.items() for time in times if time > ended[key]]
    assert not late  # the cache was asked before any worker had the result
    again = sum(map(len, asked.values())) - keys
    assert again < keys, again


@pytest.mark.parametrize("size", [100, 30_000])
def test_a_file_of_a_host_is_no_larger_than_its_bytes(size: int, place: Path) -> None:
    cache, calls = rsf.Cache(entries=1000, bytes=2 << 20, scope="executor"), Counter[int]()

    @rsf.Policy(cache=cache)
    def fetch(key: int) -> bytes:
        calls[key] += 1
        return key.to_bytes(4, "big") * (size // 4)

    for key in range(3000):
        assert fetch(key)[:4] == fetch(key)[:4] == key.to_bytes(4, "big")
    (folder,) = folders(place)
    assert (folder / "data.mdb").stat().st_size <= 2 << 20
    assert set(calls.values()) == {1}
    kept = 1000 if size == 100 else int(0.5 * (2 << 20) / size)
    for key in range(3000 - kept, 3000):
        fetch(key)
    assert set(calls.values()) == {1}
    fetch(3000 - 1002)  # the oldest ones are gone
    assert calls[3000 - 1002] == 2


WRITING = """
import sys
import rstreams_fast as rsf

cache = rsf.Cache(bytes=1 << 20, scope="executor", name="n")
fetch = rsf.Policy(cache=cache)(lambda key: b"x" * 999)
for key in range(10**9):
    fetch(key)
    if key == 100:
        print(flush=True)
"""


@pytest.mark.slow
def test_a_killed_process_leaves_a_whole_file() -> None:
    fetch = rsf.Policy(cache=rsf.Cache(bytes=1 << 20, scope="executor", name="n"))(abs)
    for _ in range(3):
        with OtherProcess(WRITING) as one, OtherProcess(WRITING) as other:
            one.line()
            other.line()
            one.send_signal(signal.SIGKILL)
            for key in range(1000):
                assert fetch(key) == fetch(key) == key  # the others write as fast as they can
            with one, other:
                pass
            before = fetch.counts.attempts  # type: ignore[attr-defined]
            assert fetch(1000) == fetch(1000) == 1000
            assert fetch.counts.attempts == before + 1  # type: ignore[attr-defined]


SHARED = """
import rstreams_fast as rsf

@rsf.Policy(cache=rsf.Cache(scope="executor", name="n"))
def fetch(key):
    return f"called for {key}"

@rsf.Policy(cache=rsf.Cache(scope="executor", name="n"))
def other(key):
    return "other"
"""
IMPORTING = "import shared_module as m; print(m.fetch(1), m.fetch.counts.attempts, m.other(1))"


def test_processes_that_import_a_module_share_its_named_cache(tmp_path: Path) -> None:
    (tmp_path / "shared_module.py").write_text(SHARED, encoding="utf-8")
    env = {"PYTHONPATH": str(tmp_path)}
    told = [run_python("-c", IMPORTING, env=env).stdout.strip() for _ in range(2)]
    assert told == ["called for 1 1 other", "called for 1 0 other"]


FORKED = """
import os
import rstreams_fast as rsf

@rsf.Policy(cache=rsf.Cache(scope="executor"))
def fetch(key):
    print(f"called for {key}", flush=True)

fetch(0)
for key in (1, 2):
    if not os.fork():
        fetch(0)
        fetch(key)
        os._exit(0)
    os.wait()
    fetch(key)
fetch(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_shares_the_file_of_its_parent() -> None:
    done = run_python("-W", "ignore", "-c", FORKED)
    assert done.stdout.split("\n") == ["called for 0", "called for 1", "called for 2", ""]
    assert not done.stderr


def test_a_file_that_cannot_be_opened_is_not_replaced(place: Path) -> None:
    fetch = rsf.Policy(cache=rsf.Cache(scope="executor", name="n"))(str)
    assert fetch(1) == "1"
    (folder,) = folders(place)
    forget_caches()
    before = (folder / "data.mdb").stat().st_ino
    with lmdb.open(str(folder)):  # LMDB opens a file once in a process
        other = copy.copy(fetch)
        assert [other(1), other(1)] == ["1", "1"]
    assert (folder / "data.mdb").stat().st_ino == before


def test_a_name_is_one_cache_and_a_pickled_copy_is_the_same() -> None:
    assert copy.copy(cache := rsf.Cache()).id == cache.id != rsf.Cache().id
    named = rsf.Cache(scope="executor", name="n")
    assert named.id == rsf.Cache(scope="executor", name="n").id
    for wrong in ({"scope": "host"}, {"name": "n"}, {"scope": "executor", "bytes": 1 << 19}):
        with pytest.raises(ValueError, match="Cache"):
            rsf.Cache(**wrong)


def test_what_a_file_cannot_keep_is_called_for_again() -> None:
    calls = Counter[str]()
    large = rsf.Cache(bytes=1 << 20, scope="executor")

    @rsf.Policy(cache=large)
    def fetch(what: str) -> Any:
        calls[what] += 1
        return {"lambda": lambda: 1, "large": b"x" * (1 << 18), "none": None}[what]

    for what in ("lambda", "large", "none"):
        fetch(what)
        fetch(what)
    assert calls == {"lambda": 2, "large": 2, "none": 1}
    with pytest.raises(TypeError, match=r"argument 1 .* a key of object .*Policy\(key="):
        fetch(object())


def test_a_damaged_file_is_replaced(caplog: pytest.LogCaptureFixture, place: Path) -> None:
    calls = list[int]()
    fetch = rsf.Policy(cache=rsf.Cache(scope="executor"))(calls.append)
    fetch(1)
    forget_caches()
    (folder,) = folders(place)
    file = folder / "data.mdb"
    file.write_bytes(b"x" * file.stat().st_size)
    assert fetch(1) is None  # its file is closed, which is a warning
    assert len(caplog.records) == 1
    again = copy.copy(fetch)
    assert [again(1), again(1)] == [None, None]
    assert calls == [1, 1, 1]


def test_what_nobody_uses_is_removed(place: Path) -> None:
    first, second = (rsf.Cache(scope="executor", name=name) for name in "ab")
    rsf.Policy(cache=first)(str)(1)
    (folder,) = folders(place)
    os.utime(folder / "users", (1, 1))
    rsf.Policy(cache=second)(str)(1)
    assert folder.exists()  # this process has it open


AN_HOUR_LATER = """
import glob, os, sys, time
import rstreams_fast as rsf

fetch = rsf.Policy(cache=rsf.Cache(scope="executor", name="n"))(str)
fetch(1)
(users,) = glob.glob(sys.argv[1] + "/rstreams-cache-*/*/users")
clock = time.time
time.time = lambda: clock() + 3600
os.utime(users, (1, 1))
fetch(1)
"""


def test_what_was_used_until_its_process_ended_is_kept(place: Path) -> None:
    run_python("-c", AN_HOUR_LATER, str(place))
    (folder,) = folders(place)
    rsf.Policy(cache=rsf.Cache(scope="executor", name="other"))(str)(1)
    assert folder.exists()
    os.utime(folder / "users", (1, 1))
    rsf.Policy(cache=rsf.Cache(scope="executor", name="third"))(str)(1)
    assert not folder.exists()


@BOTH
@pytest.mark.parametrize("told", [False, True])
def test_a_failure_is_raised_again_for_its_time(scope: Any, told: bool) -> None:
    calls = Counter[int]()

    async def fetch(key: int) -> int:
        calls[key] += 1
        await asyncio.sleep(0)
        if key % 2:
            raise Poison(key)
        return key

    cache = rs.Cache(scope=scope, failure_ttl=100)
    words = {"on_failure": "column"} if told else {"on_failure": "null"}
    stage = made(rs.lookup, fetch, pa.int64(), cache=cache, **words)
    first, again = rows(stage, range(10)), rows(stage, range(10))
    assert set(calls.values()) == {1}
    assert len(first) == len(again) == 10
    function = rsf.Policy(cache=cache)(fetch)
    raised = list[BaseException]()
    for _ in range(3):
        with pytest.raises(Poison) as info:
            asyncio.run(function(11))
        raised.append(info.value)
        info.value.add_note("by who caught it")
    assert calls[11] == 1
    assert [error.args for error in raised] == [(11,)] * 3
    assert len({id(error) for error in raised}) == 3
    assert [len(error.__notes__) for error in raised] == [1, 1, 1]


class Answered(Exception):
    """Is made as the errors of HTTP clients are."""

    def __init__(self, text: str, *, status: int) -> None:
        super().__init__(text)
        self.status = status


class Status(Exception):
    """Has a text that its constructor makes of a number."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class Refused(OSError):
    """Has another constructor than the built-in type."""

    def __init__(self, status: int) -> None:
        super().__init__(status, f"status {status}")
        self.status = status


class Slotted(Exception):
    """Says itself how it is copied."""

    __slots__ = ("status",)

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status

    def __reduce__(self) -> Any:
        return Slotted, (self.status,)


@BOTH
@pytest.mark.parametrize(
    "error",
    [Answered("no", status=404), Status(404), Refused(404), Slotted(404)],
    ids=lambda error: type(error).__name__,
)
def test_a_failure_is_kept_whatever_its_constructor_takes(scope: Any, error: Any) -> None:
    calls = list[int]()

    def fetch(key: int) -> None:
        calls.append(key)
        raise error

    cache = rsf.Cache(scope=scope, failure_ttl=100)
    function = rsf.Policy(cache=cache)(fetch)
    for _ in range(3):
        with pytest.raises(type(error)) as info:
            function(1)
        found: Any = info.value
        assert (found.status, found.args, str(found)) == (404, error.args, str(error))
    assert calls == [1]


@BOTH
def test_results_expire(scope: Any) -> None:
    calls = Counter[Any]()

    def fetch(key: Any) -> Any:
        calls[key] += 1
        if key == "poison":
            raise Poison(1)
        return None if key == "null" else key

    cache = rsf.Cache(scope=scope, ttl=0.05, null_ttl=0.05, failure_ttl=0.05)
    function = rsf.Policy(cache=cache)(fetch)

    def called_twice(key: str) -> bool:
        with contextlib.suppress(Poison):
            function(key)
        return calls[key] > 1

    for key in ("value", "null", "poison"):
        wait_until(lambda key=key: called_twice(key), f"the end of {key}")
    kept = rsf.Policy(cache=rsf.Cache(scope=scope, null_ttl=0))(fetch)
    for key in ("kept", "null", "null", "kept"):
        kept(key)
    assert calls["kept"] == 1


@pytest.mark.parametrize(
    "error", [rs.RetryAfter(0.0), rsf.CircuitOpenError("open")], ids=lambda e: type(e).__name__
)
def test_what_says_nothing_of_the_key_is_not_kept(error: Exception) -> None:
    calls = list[int]()

    async def fetch(key: int) -> int:
        calls.append(key)
        raise error

    function = rsf.Policy(cache=rsf.Cache(failure_ttl=100), patience=0.01)(fetch)
    for _ in range(2):
        before = len(calls)
        with pytest.raises(type(error)):
            asyncio.run(function(1))
        assert len(calls) > before


@pytest.mark.parametrize("kind", sorted(RESULTS.keys() - {"bytes of Arrow"}))  # C++ has their bytes
def test_the_memory_of_a_process_is_what_the_cache_says(kind: str) -> None:
    most, result_bytes = 2 << 20, 8 << 10
    cache = rsf.Cache(bytes=most, entries=10**6)
    make: Callable[[Any], Any] = RESULTS[kind]
    row = np.random.rand(4, result_bytes // 8)

    @rsf.Policy(cache=cache)
    def fetch(key: int) -> Any:
        return make(row.copy()[key % 4])

    fetch(-1)  # imports
    forget_caches()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes()
        for key in range(400):
            fetch(key)
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - before
    finally:
        tracemalloc.stop()
    assert 0.5 * most < kept <= 1.2 * most


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("make", "calls_each"),
    [
        (lambda: rsf.Policy(cache=rsf.Cache(failure_ttl=100)), 1),
        (lambda: rsf.Policy(circuit=rsf.Circuit(failures=1, reset=100)), 1),
        (lambda: rsf.Policy(retry=rsf.Retry(20, backoff=0, budget=0.01)), 13),
    ],
    ids=["cache", "circuit", "budget of retries"],
)
def test_many_functions_keep_their_state_when_threads_end(
    make: Callable[[], rsf.Policy], calls_each: int, is_async: bool
) -> None:
    calls = Counter[int]()

    def function(number: int) -> Any:
        def fetch() -> None:
            calls[number] += 1
            raise Poison(number)

        async def fetch_later() -> None:
            fetch()

        return make()(fetch_later if is_async else fetch)

    functions = [function(number) for number in range(70)]

    def call_all() -> None:
        for fetch in functions:
            with contextlib.suppress(Poison, rsf.CircuitOpenError):
                asyncio.run(fetch()) if is_async else fetch()

    for _ in range(3):
        start_thread(call_all).result()
    assert set(calls.values()) == {calls_each}


def test_a_dropped_result_may_call_cached_functions_while_it_ends() -> None:
    cache, ended = rsf.Cache(entries=1), list[int]()

    @rsf.Policy(cache=cache)
    def name_of(number: int) -> int:
        return number

    class Handle:
        def __init__(self, number: int) -> None:
            self.number = number

        def __del__(self) -> None:
            ended.append(name_of(self.number))
            ended.append(start_thread(lambda: name_of(-self.number)).result())

    handle_of = rsf.Policy(cache=cache)(Handle)

    def calls() -> None:
        for number in range(1, 4):
            handle_of(number)

    start_thread(calls).result()
    assert ended[:4] == [1, -1, 2, -2]


INTERRUPTED = """
import faulthandler, itertools, sys
import rstreams_fast as rsf

@rsf.Policy(**eval(sys.argv[1]))
def double(x):
    return 2 * x

within, keys = False, itertools.count(1000)

def call_within(frame, *_):
    global within
    if not within and "rstreams_fast" in frame.f_code.co_filename:
        within = True
        key = next(keys)
        assert double(key) == 2 * key
        within = False
    return call_within

faulthandler.dump_traceback_later(60, exit=True)
sys.settrace(call_within)
right = [double(x) for x in range(9)] == [2 * x for x in range(9)]
sys.settrace(None)
print(right, next(keys) > 1100)
"""


@pytest.mark.parametrize(
    "words",
    [
        "dict(cache=rsf.Cache(entries=4))",
        "dict(cache=rsf.Cache(entries=4, scope='executor'))",
        "dict(retry=rsf.Retry(3, budget=0.1))",
        "dict(circuit=rsf.Circuit())",
        "dict(budget=rsf.Budget('interrupted', calls=10**9))",
    ],
)
def test_a_finalizer_may_make_a_call_at_any_line_of_a_call(words: str) -> None:
    # Finalizers and handlers of signals run between any two lines, as this trace function does.
    assert run_python("-c", INTERRUPTED, words).stdout.split() == ["True", "True"]


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    fetch = rsf.Policy(cache=rsf.Cache(scope="executor"))(str)
    with (
        temporary_in(tmp_path / "gone"),
        pytest.raises(RuntimeError, match=r"Cache\(scope='executor'\): its file .*gone"),
    ):
        fetch(1)


def test_arguments_without_a_hash_are_told(caplog: pytest.LogCaptureFixture) -> None:
    sizes = rsf.Policy(cache=rsf.Cache())(len)
    assert [sizes([1, 2]), sizes([1, 2])] == [2, 2]
    assert ["unhashable type: 'list'" in record.getMessage() for record in caplog.records] == [True]


def test_no_iterator_is_kept_as_its_first_caller_uses_it_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def squares(count: int) -> Iterator[int]:
        return (n * n for n in range(count))

    careful = rsf.Policy(cache=rsf.Cache())
    halves, each = careful(lambda numbers: map(int, numbers)), careful(squares)
    for _ in range(2):
        assert list(halves((0.5, 1.5))) == [0, 1]
        assert list(asyncio.run(each(3))) == [0, 1, 4]
    texts = [record.getMessage() for record in caplog.records]
    assert [text for text in texts if "squares" in text] == [
        "squares: its cache keeps no iterators: return a list"
    ]
