"""``Journal`` around functions outside stages, around ``map_batches``; and ``call_id``."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import math
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyarrow import fs

import rstreams_fast as rsf
import rstreams_fast.spark as rs
from tests.fresh import forget_journals, impatient_writers
from tests.helpers import run_python, start_thread, wait_for, wait_until
from tests.spark.processes import OtherProcess
from tests.spark.stages import V, made, parts, rows, values

__all__ = ["impatient_writers"]
ROOT = Path(__file__).parents[2]
BATCH = pa.RecordBatch.from_pydict({"a": [1, None], "b": ["x", "yz"]})
PLAIN: list[Any] = [
    *(
        None,
        True,
        2**70,
        0.1,
        -math.inf,
        "grüße \U0001f600",
        "\ud800",
        ["\ud83d\ude00", {"\ud83d\ude00": "\U0001f600"}],
        b"\x00\xff",
        [1, [2.5, None]],
        (1, ("a",)),
    ),
    *({"a": {"b": [1]}}, {1: "a", (2, 3): None}, {"$bytes": "no mark"}, {"$": 1, "a": 2}),
    *(dt.datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=dt.UTC), dt.datetime.fromisoformat("2026-03-04")),
    *(dt.date(1582, 10, 4), dt.time(1, 2, 3, 4), dt.timedelta(-1, 1, 1), Decimal("-1.10")),
    *(uuid.UUID(int=7), [BATCH], {"b": BATCH}, [10**5000, -(10**5000)]),
]


class Celsius(NamedTuple):
    degrees: float


class Fahrenheit(NamedTuple):
    degrees: float


NEW_YORK, TOKYO = ZoneInfo("America/New_York"), ZoneInfo("Asia/Tokyo")
DISTINCT: list[Any] = [
    *(0.0, -0.0, (20.0,), Celsius(20.0), Fahrenheit(20.0)),
    *(dt.time(9), dt.time(9, fold=1), dt.time(9, tzinfo=NEW_YORK), dt.time(9, tzinfo=TOKYO)),
    *(
        dt.datetime(2024, 11, 3, 1, 30, fold=fold, tzinfo=NEW_YORK).replace(tzinfo=zone)
        for fold in (0, 1)
        for zone in (NEW_YORK, None)
    ),
    *(dt.datetime(9999, 12, 31, hour, tzinfo=NEW_YORK) for hour in (18, 19, 20)),
    *(dt.datetime(1, 1, 1, hour, tzinfo=TOKYO) for hour in (7, 8, 9)),
]
"""Values of which none has the answer of another."""


@pytest.fixture(autouse=True)
def place(temporary: Path) -> Iterator[Path]:
    yield temporary
    forget_journals()


@pytest.fixture
def journal(tmp_path: Path) -> rsf.Journal:
    return rsf.Journal(str(tmp_path / "journal"), version="1")


def segments(place: Path) -> list[Path]:
    return list(place.glob("journal/*/*.arrow"))


def writers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "journal" in thread.name]


class Service:
    def __init__(self, answers: list[Any] | None = None) -> None:
        self.calls: list[Any] = []
        self._answers = answers

    def call(self, key: int, **words: Any) -> Any:
        self.calls.append(key)
        return 2 * key if self._answers is None else self._answers[key]

    async def acall(self, key: int, **words: Any) -> Any:
        await asyncio.sleep(0)
        return self.call(key, **words)


@pytest.mark.parametrize("is_async", [True, False])
def test_plain_answers_are_found_again(is_async: bool, journal: rsf.Journal, place: Path) -> None:
    service = Service(PLAIN)
    keys = range(len(PLAIN))
    for times in range(3):
        function = rsf.Policy(journal=journal)(service.acall if is_async else service.call)

        async def all_of(function: Any = function) -> list[Any]:
            return [await function(key) for key in keys] + [await function(key) for key in keys]

        found = asyncio.run(all_of()) if is_async else [function(key) for key in (*keys, *keys)]
        assert found == PLAIN * 2
        assert list(map(type, found)) == [*map(type, PLAIN)] * 2
        assert service.calls == list(keys)
        if is_async or times:
            forget_journals()
            assert len(segments(place)) == 1  # what was merged when the loop ended
            assert not writers()


def test_an_answer_has_its_fold_again(journal: rsf.Journal) -> None:
    twice = dt.datetime(2024, 11, 3, 1, 30, tzinfo=dt.UTC, fold=1)
    answers = [twice, twice.replace(tzinfo=None), twice.time(), [twice.replace(fold=0)]]
    for _ in range(2):
        function = rsf.Policy(journal=journal)(Service(answers).call)
        found = [function(key) for key in range(4)]
        assert list(map(repr, found)) == list(map(repr, answers))
        forget_journals()


def test_an_answer_has_its_zone_again(journal: rsf.Journal) -> None:
    in_winter = dt.datetime(2024, 1, 2, 3, tzinfo=NEW_YORK)
    twice = dt.datetime(2024, 11, 3, 1, 30, tzinfo=NEW_YORK, fold=1)
    utc, fixed = ZoneInfo("UTC"), dt.timezone(dt.timedelta(hours=1))
    nameless = dt.datetime(2024, 7, 1, tzinfo=NamelessZone())
    answers = [
        *(in_winter, [twice], twice.timetz(), dt.time(12, tzinfo=utc), dt.time(12, tzinfo=dt.UTC)),
        *(in_winter.replace(tzinfo=utc), in_winter.replace(tzinfo=fixed)),
    ]
    for _ in range(2):
        function = rsf.Policy(journal=journal)(Service(answers).call)
        found = [function(key) for key in range(len(answers))]
        assert list(map(repr, found)) == list(map(repr, answers))
        assert found[0] + dt.timedelta(180) == in_winter + dt.timedelta(180)
        give = rsf.Policy(journal=journal, key=lambda _: "nameless")(lambda answer: answer)
        assert give(nameless).utcoffset() == dt.timedelta(hours=2)
        forget_journals()


class NamelessZone(dt.tzinfo):
    """Has another offset in summer, and no key."""

    def utcoffset(self, when: dt.datetime | None) -> dt.timedelta | None:
        return None if when is None else dt.timedelta(hours=1 + (3 < when.month < 11))

    def dst(self, when: dt.datetime | None) -> dt.timedelta | None:
        return None


def test_what_is_not_plain_is_said(journal: rsf.Journal) -> None:
    class Client:
        asked = 0

    def fetch(client: Client, key: int, **words: Any) -> Any:
        client.asked += 1
        return Client() if key < 0 else {"k": key}

    client = Client()
    with pytest.raises(TypeError, match=r"fetch: .*argument 1 .*Client .*Policy\(key="):
        rsf.Policy(journal=journal)(fetch)(client, 1)
    assert not client.asked
    function = rsf.Policy(journal=journal, key=lambda client, key, **_: key)(fetch)
    with pytest.raises(TypeError, match=r"an answer has a .*Client, which is none"):
        function(client, -1)
    assert [function(Client(), 1), function(client, 1, trace=2)] == [{"k": 1}] * 2
    assert client.asked == 1
    gives = rsf.Policy(journal=journal, key=lambda answer: str(type(answer)))(lambda answer: answer)
    np, zone = pytest.importorskip("numpy"), NamelessZone()
    for kind in (object(), {object()}, rs.Bounds(), np.longdouble(1), dt.time(12, tzinfo=zone)):
        with pytest.raises(TypeError, match="plain") as refused:
            gives([kind])
        assert any("returned by" in note for note in refused.value.__notes__)
    assert [gives(np.float64(1.5)), gives(np.float64(1.5))] == [1.5, 1.5]


def test_an_answer_that_cannot_be_stored_is_said(journal: rsf.Journal) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(RecursionError) as refused:
        rsf.Policy(journal=journal)(lambda: endless)()
    assert any("returned by" in note for note in refused.value.__notes__)


def test_arguments_and_versions_tell_calls_apart(journal: rsf.Journal) -> None:
    service = Service(["a", "b", "c"])
    for each in (journal, rsf.Journal(journal.uri, version="2")):
        function = rsf.Policy(journal=each)(service.call)
        for _ in range(2):
            assert [function(1), function(True), function(1, a=2), function(1, a=3)] == ["b"] * 4
    assert len(service.calls) == 8


@pytest.mark.parametrize("is_shared", [False, True], ids=["journal", "cache of a host"])
def test_calls_of_different_shapes_are_told_apart(is_shared: bool, journal: rsf.Journal) -> None:
    def fetch(*args: Any, **words: Any) -> str:
        return repr((args, words))

    policy = (
        rsf.Policy(cache=rsf.Cache(scope="executor")) if is_shared else rsf.Policy(journal=journal)
    )
    function = policy(fetch)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        *[((), {}), (((),), {}), ((1, 2), {}), (((1, 2),), {}), ((((1, 2),),), {})],
        *[(({"a": 1},), {}), ((), {"a": 1}), ((1, {"a": 1}), {}), ((1,), {"a": 1})],
        *[((((), {"a": 1}),), {}), (((), {"a": 1}), {}), (((),), {"a": 1})],
        *[((value,), {}) for value in DISTINCT],
    ]
    for _ in range(2):
        for args, words in calls:
            assert function(*args, **words) == repr((args, words))
    assert function.counts.calls == len(calls)


@pytest.mark.parametrize("is_shared", [False, True], ids=["journal", "cache of a host"])
def test_great_ints_tell_calls_apart(is_shared: bool, journal: rsf.Journal) -> None:
    def fetch(*args: Any) -> tuple[str, int]:
        return rs.call_id(), sum(args)

    policy = (
        rsf.Policy(cache=rsf.Cache(scope="executor")) if is_shared else rsf.Policy(journal=journal)
    )
    function, great = policy(fetch), 10**5000
    calls = [(great,), (-great,), (great + 1,), (great, 0), (0, great)]
    found = [[function(*args) for args in calls] for _ in range(2)]
    assert found[0] == found[1]
    assert [total for _, total in found[0]] == list(map(sum, calls))
    assert len({identity for identity, _ in found[0]}) == len(calls) == function.counts.calls


ENDING = """
import sys
import rstreams_fast as rsf

def call(key):
    print(key, flush=True)
    return 2 * key

async def acall(key):
    return call(key)

journal, count = rsf.Journal(sys.argv[1], version="1"), int(sys.argv[3])
if sys.argv[2] == "plain":
    fetch = rsf.Policy(journal=journal)(call)
    assert [fetch(key) for key in range(count)] == [2 * key for key in range(count)]
else:
    import asyncio
    fetch = rsf.Policy(journal=journal)(acall)
    async def main():
        return await asyncio.gather(*map(fetch, range(count)))
    assert asyncio.run(main()) == [2 * key for key in range(count)]
"""


@pytest.mark.parametrize(("kind", "count"), [("plain", 1), ("plain", 100), ("async", 100)])
def test_a_program_writes_its_journal_before_it_ends(kind: str, count: int, place: Path) -> None:
    command = [sys.executable, "-c", ENDING, str(place / "journal"), kind, str(count)]
    for calls in (count, 0):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert len(done.stdout.split()) == calls, done.stderr
        assert len(segments(place)) == 1
        assert not list(place.glob("rstreams-journal-*"))  # no log is left


def test_a_new_function_finds_what_another_process_has_written(
    journal: rsf.Journal, place: Path
) -> None:
    """As the next task of a reused worker of Spark does, which unpickles the function again."""
    calls = []

    def call(key: int) -> int:
        calls.append(key)
        return 2 * key

    call.__qualname__ = "call"
    assert rsf.Policy(journal=journal)(call)(9) == 18
    run_python("-c", ENDING, str(place / "journal"), "plain", "3", cwd=ROOT)
    again = rsf.Policy(journal=journal)(call)
    assert [again(key) for key in (0, 1, 2, 9)] == [0, 2, 4, 18]
    assert calls == [9]


KILLED = """
import asyncio, sys
import rstreams_fast as rsf

@rsf.Policy(journal=rsf.Journal(sys.argv[1], version="1"))
async def fetch(key):
    print(key, flush=True)
    await asyncio.sleep(0.01)
    return 2 * key

async def main():
    left = iter(range(600))
    async def some():
        for key in left:
            assert await fetch(key) == 2 * key
    await asyncio.gather(*(some() for _ in range(16)))
    print("end", flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_killed_program_calls_again_what_was_in_flight(place: Path) -> None:
    calls = Counter[str]()
    for most in (200, 200, 10_000):
        with OtherProcess(KILLED, str(place / "journal")) as process:
            while most and (line := process.line()) not in {"end", ""}:
                calls[line] += 1
                most -= 1
            process.send_signal(signal.SIGKILL)
            while (line := process.line()) not in {"end", ""}:
                calls[line] += 1
    assert len(calls) == 600
    assert calls.total() <= 600 + 2 * 16


@pytest.mark.usefixtures("impatient_writers")
def test_the_thread_that_writes_ends_and_begins_again(journal: rsf.Journal, place: Path) -> None:
    service = Service()
    function = rsf.Policy(journal=journal)(service.call)
    for key in range(3):
        assert [function(key), function(key)] == [2 * key] * 2
        assert writers() or segments(place)
        wait_until(lambda: not writers(), "the end of the thread")
        assert len(segments(place)) == key + 1
    assert [function(key) for key in range(3)] == [0, 2, 4]
    assert service.calls == [0, 1, 2]


def test_a_journal_that_cannot_be_written_is_no_call(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    service = Service()
    function = rsf.Policy(journal=rsf.Journal(str(tmp_path / "file" / "x"), version="1"))
    with pytest.raises(OSError):
        function(service.call)(1)
    with pytest.raises(OSError):
        asyncio.run(function(service.acall)(1))
    assert not service.calls


def put_aside(place: Path) -> Callable[[], object]:
    """Have the one folder of a journal no folder; return what puts it back."""
    (folder,) = (place / "journal").iterdir()
    aside = folder.rename(place / "aside")
    folder.touch(exist_ok=False)

    def put_back() -> None:
        folder.unlink()
        folder.mkdir(exist_ok=True)  # the journal may have made it already
        for file in aside.iterdir():
            file.rename(folder / file.name)
        aside.rmdir()

    return put_back


def paid_by_another(place: Path, kind: str, count: int) -> list[str]:
    """Return the keys below ``count`` for which another process finds no answer."""
    done = run_python("-c", ENDING, str(place / "journal"), kind, str(count), cwd=ROOT)
    return done.stdout.split()


@pytest.mark.usefixtures("impatient_writers")
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_journal_recovers_when_it_can_be_written_again(
    kind: str, journal: rsf.Journal, place: Path
) -> None:
    """While it cannot be written no call is paid for; and no answer is lost."""
    paid: list[int] = []
    refusals: list[OSError] = []

    def call(key: int) -> int:
        paid.append(key)
        return 2 * key

    async def acall(key: int) -> int:
        return call(key)

    call.__qualname__, acall.__qualname__ = "call", "acall"
    plain, is_async = rsf.Policy(journal=journal)(call), rsf.Policy(journal=journal)(acall)

    async def ask_async(key: int) -> int:
        return await is_async(key)

    with asyncio.Runner() as runner:

        def ask_next() -> bool:
            """Ask for the next key; return whether it was paid for."""
            key = len(paid)
            try:
                answer = plain(key) if kind == "plain" else runner.run(ask_async(key))
            except OSError as refused:
                refusals.append(refused)
                assert len(paid) == key
            else:
                assert answer == 2 * key
            return len(paid) > key

        assert ask_next()
        wait_until(lambda: not writers(), "the end of writing")
        put_back = put_aside(place)
        wait_until(lambda: not ask_next(), "the failure")
        before = len(paid)
        wait_until(lambda: ask_next() or refusals[-1] is not refusals[0], "the next try to write")
        assert len(paid) == before
        put_back()
        wait_until(ask_next, "the recovery")
        for _ in range(3):  # more often than there are logs
            wait_until(lambda: not writers(), "the end of writing")
            assert ask_next()
        assert paid_by_another(place, kind, len(paid)) == []
    forget_journals()
    assert paid_by_another(place, kind, len(paid)) == []


def test_what_a_loop_could_not_write_the_next_loop_finds(
    journal: rsf.Journal, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service()
    function = rsf.Policy(journal=journal)(service.acall)

    async def ask(*keys: int) -> list[int]:
        return [await function(key) for key in keys]

    async def ask_in_trouble() -> Callable[[], object]:
        assert await ask(1) == [2]  # the journal is open now
        put_back = put_aside(place)
        assert await ask(2) == [4]
        return put_back

    assert asyncio.run(ask(1)) == [2]
    put_back = asyncio.run(ask_in_trouble())
    assert "the directory cannot be made" in caplog.text
    with pytest.raises(OSError):
        asyncio.run(ask(3))
    assert service.calls == [1, 2]
    put_back()
    for _ in range(2):
        assert asyncio.run(ask(1, 2, 3)) == [2, 4, 6]
        assert service.calls == [1, 2, 3]
        forget_journals()
    assert not list(place.glob("rstreams-journal-*"))  # no log is left


class SlowFileSystem:
    """Stands for ``pyarrow.fs.FileSystem``: ``from_uri`` takes until ``is_found`` is set."""

    def __init__(self) -> None:
        self.is_asked, self.is_found = threading.Event(), threading.Event()
        self._from_uri = fs.FileSystem.from_uri

    def from_uri(self, uri: str) -> Any:
        self.is_asked.set()
        wait_for(self.is_found, "the turn of another task")
        return self._from_uri(uri)


@pytest.fixture
def slow_file_system(monkeypatch: pytest.MonkeyPatch) -> SlowFileSystem:
    slow = SlowFileSystem()
    monkeypatch.setattr(fs, "FileSystem", slow)
    return slow


def test_a_loop_goes_on_while_a_journal_is_opened(
    journal: rsf.Journal, slow_file_system: SlowFileSystem
) -> None:
    service = Service()
    function = rsf.Policy(journal=journal)(service.acall)

    async def main() -> int:
        call = asyncio.create_task(function(1))
        await asyncio.to_thread(wait_for, slow_file_system.is_asked, "the request")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(function(2), 0)
        slow_file_system.is_found.set()
        return await call

    assert asyncio.run(main()) == 2


def test_a_loop_goes_on_while_another_loop_opens_the_journal(
    journal: rsf.Journal, slow_file_system: SlowFileSystem
) -> None:
    function, again = (rsf.Policy(journal=journal)(Service().acall) for _ in range(2))

    async def call_there() -> int:
        return await function(1)

    async def call_here() -> int:
        call = asyncio.create_task(again(1))
        await asyncio.sleep(0)  # the call has begun
        slow_file_system.is_found.set()
        return await call

    there = start_thread(lambda: asyncio.run(call_there()))
    wait_for(slow_file_system.is_asked, "the request")
    assert asyncio.run(call_here()) == 2
    assert there.result() == 2


# -- batches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
def test_an_answer_is_that_of_the_key_as_it_was_given(is_async: bool, journal: rsf.Journal) -> None:
    def drain(items: list[int]) -> int:
        count = len(items)
        items.clear()
        return count

    async def adrain(items: list[int]) -> int:
        return drain(items)

    function = rsf.Policy(journal=journal)(drain)
    stage = made(rs.enrich, adrain if is_async else drain, output=V, on="k", journal=journal)
    for some in ([1, 2, 3], [], [1, 2, 3], [1, 2]):
        assert function(some.copy()) == len(some)
        batch = pa.RecordBatch.from_pydict({"k": pa.array([some], pa.list_(pa.int64()))})
        (found,) = stage.as_map_fn()(iter([batch]))
        assert found["v"].to_pylist() == [len(some)]
        forget_journals()


def test_the_ends_of_time_are_one_instant_in_any_zone(journal: rsf.Journal) -> None:
    named = rsf.Policy(journal=journal)(lambda moment: rs.call_id())
    for one, other in (
        (
            dt.datetime(9999, 12, 31, 23, tzinfo=NEW_YORK),
            dt.datetime(9999, 12, 31, 22, tzinfo=ZoneInfo("America/Chicago")),
        ),
        (
            dt.datetime(1, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=9))),
            dt.datetime(1, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=8))),
        ),
    ):
        assert named(one) == named(other)
    assert named.counts.calls == 2


def test_nanoseconds_tell_calls_apart(journal: rsf.Journal) -> None:
    pandas = pytest.importorskip("pandas")
    shown = rsf.Policy(journal=journal)(str)
    for kind in (pandas.Timedelta, pandas.Timestamp):
        assert len({shown(kind(count, unit="ns")) for count in range(3)}) == 3


ONE = pa.array([0, 1], pa.int32())
WITHIN: dict[str, Callable[[pa.Array], pa.Array]] = {
    "list": lambda times: pa.ListArray.from_arrays(ONE, times),
    "large list": lambda times: pa.LargeListArray.from_arrays(ONE.cast(pa.int64()), times),
    "fixed list": lambda times: pa.FixedSizeListArray.from_arrays(times, 1),
    "struct": lambda times: pa.StructArray.from_arrays([times], ["at"]),
    "map": lambda times: pa.MapArray.from_arrays(ONE, pa.array(["at"]), times),
    "dictionary": lambda times: pa.DictionaryArray.from_arrays(ONE[:1], times),
    "list of structs": lambda times: WITHIN["list"](WITHIN["struct"](times)),
}


@pytest.mark.parametrize("within", WITHIN)
def test_nanoseconds_within_a_column_tell_batches_apart(within: str, journal: rsf.Journal) -> None:
    count = itertools.count()
    numbered = rsf.Policy(journal=journal)(lambda _: next(count))
    for _ in range(2):
        columns = [WITHIN[within](pa.array([n], pa.time64("ns"))) for n in range(3)]
        batches = [pa.RecordBatch.from_arrays([column], ["a"]) for column in columns]
        assert [numbered(batch) for batch in batches] == [0, 1, 2]


@pytest.mark.parametrize(
    "column",
    [
        *(pa.array([0] * 3, kind) for kind in (pa.int8(), pa.uint8(), pa.int16(), pa.int64())),
        *(pa.array([0] * 3, kind) for kind in (pa.float32(), pa.float64(), pa.time64("ns"))),
        *(pa.array([value] * 3) for value in ("", b"\0", False, Decimal(0), [0], {"a": 0})),
        pa.array(["a"] * 3).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_nulls_are_told_from_values(column: pa.Array, journal: rsf.Journal) -> None:
    count = itertools.count()
    numbered = rsf.Policy(journal=journal)(lambda _: next(count))
    null = pa.nulls(1, column.type)
    columns = [
        pa.concat_arrays([null if bits >> place & 1 else column[:1] for place in range(3)])
        for bits in range(8)
    ]
    batches = [
        pa.RecordBatch.from_arrays([one, other], ["a", "b"]) for one in columns for other in columns
    ]
    assert [numbered(batch) for batch in batches] == [*range(64)]


def test_a_batch_is_known_by_what_is_in_it(journal: rsf.Journal) -> None:
    count = itertools.count()
    numbered = rsf.Policy(journal=journal)(lambda _: next(count))

    def text(column: pa.Array) -> int:
        return numbered(pa.RecordBatch.from_arrays([column], ["a"]))

    for kind, some in ((pa.int32(), [1, None, 3]), (pa.string(), ["a", None, "bc"])):
        column = pa.array(some, kind)
        longer = pa.array([some[2], *some, some[0]], kind)
        assert text(column) == text(longer.slice(1, 3)) == text(pa.concat_arrays([column]))
        garbage = pa.Array.from_buffers(
            kind, 3, [column.buffers()[0], *pa.array([some[0]] * 3, kind).buffers()[1:]]
        )
        assert text(garbage) != text(column)
    zeros = pa.array([1, 7, 3], pa.int32())
    nulls = pa.Array.from_buffers(
        pa.int32(), 3, [pa.array([1, None, 3]).buffers()[0], zeros.buffers()[1]]
    )
    assert text(nulls) == text(pa.array([1, None, 3], pa.int32()))
    different = [[1], [2], [1, 1], ["1"], ["1", "1"], ["11"], ["11", ""], ["", "11"], [None], [[1]]]
    different += [[1.0], [True], [{"a": 1}], [], [dt.date(2026, 1, 1)], [Decimal(1)]]
    texts = {text(pa.array(values)) for values in different}
    texts |= {text(pa.array([count], pa.time64("ns"))) for count in range(3)}
    empty = pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([])))
    texts |= {numbered(empty), numbered(empty[:2])}
    assert len(texts) == len(different) + 5


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("told", [False, True])
def test_map_batches_pays_once_for_a_batch(
    is_async: bool, told: bool, journal: rsf.Journal
) -> None:
    service, words = Service(), {"on_failure": "column"} if told else {}

    def call(batch: pa.RecordBatch) -> Any:
        service.calls.append(batch["k"][0].as_py())
        return [{"v": 2 * k} for k in batch["k"].to_pylist()]

    async def acall(batch: pa.RecordBatch) -> Any:
        return call(batch)

    for key in (None, lambda batch: batch["k"][0].as_py()):
        stage = made(
            rs.map_batches, acall if is_async else call, V, journal=journal, key=key, **words
        )
        for _ in range(2):
            found = stage.as_map_fn()(iter(parts(10, 3)))
            assert [v for batch in found for v in batch["v"].to_pylist()] == [*range(0, 20, 2)]
            forget_journals()
    assert sorted(service.calls) == sorted([0, 3, 6, 9] * 2)


# -- call_id ---------------------------------------------------------------------------------------


def named(key: int) -> str:
    return rs.call_id()


class Client:
    async def send(self, key: int) -> str:
        return rs.call_id()

    async def __call__(self, key: int) -> str:
        return await self.send(key)


async def through_another(key: int) -> str:
    await asyncio.sleep(0.0001 * (key % 2))
    return await asyncio.to_thread(named, key)


def test_call_id_is_known_in_every_stage(journal: rsf.Journal) -> None:
    ids = dict[Any, list[str]]()
    text = pa.string()
    for fn in (named, through_another, Client()):
        for _ in range(2):
            found = values(rs.lookup(fn, text), range(20))
            assert len(set(found)) == 20
            assert ids.setdefault(fn, sorted(found)) == sorted(found)
            unordered = rs.enrich(fn, on="k", output=pa.schema([("v", text)]), ordered=False)
            assert rows(unordered, [7]) == [(7, found[7])]
    assert len({tuple(each) for each in ids.values()}) == 3
    kept = rs.Policy(journal=journal)
    assert not set(values(rs.lookup(kept(named), text), range(20))) & set(ids[named])

    async def lists(keys: list[int]) -> list[str]:
        return list(map(rs.call_id, keys))

    lists.__qualname__ = "named"
    assert sorted(values(rs.lookup(lists, text, batch=7), range(20))) == ids[named]


@pytest.mark.parametrize("is_async", [True, False])
def test_call_id_of_a_batch_is_that_of_what_is_in_it(is_async: bool) -> None:
    def call(batch: pa.RecordBatch) -> Any:
        return [{"v": rs.call_id()}]

    async def acall(batch: pa.RecordBatch) -> Any:
        return call(batch)

    stage = rs.map_batches(acall if is_async else call, pa.schema([("v", pa.string())]))
    first, second = (
        [b["v"][0].as_py() for b in stage.as_map_fn()(iter(parts(9, 3)))] for _ in range(2)
    )
    assert first == second
    assert len(set(first)) == 3


def test_call_id_is_known_in_a_function_with_a_policy() -> None:
    @rsf.Policy()
    def inner(key: int) -> str:
        return rs.call_id()

    @rsf.Policy(retry=rsf.Retry(2, backoff=0))
    async def outer(key: int) -> list[str]:
        tries[key] += 1
        found = [rs.call_id(), inner(key), rs.call_id()]
        found.append(await asyncio.create_task(own()))
        if tries[key] < 2:
            raise OSError
        return [*found, await asyncio.to_thread(rs.call_id)]

    async def own() -> str:
        return rs.call_id()

    async def main() -> list[list[str]]:
        return await asyncio.gather(outer(1), outer(2), outer(1))

    tries = Counter[int]()
    one, two, again = asyncio.run(main())
    assert one == again
    assert len({*one, *two}) == 4
    assert one[0] == one[2] == one[3] == one[4] != one[1]
    with pytest.raises(RuntimeError, match="call_id is for"):
        rs.call_id()
    keyed = rsf.Policy(key=lambda client, key: key)(lambda client, key: rs.call_id())
    assert keyed(object(), 1) == keyed(object(), 1)
    with pytest.raises(TypeError, match=r"call_id know a call by plain values.*Policy\(key="):
        rsf.Policy()(lambda client: rs.call_id())(object())


def changing(values: list[int]) -> str:
    before = rs.call_id()
    values.append(len(values))
    return f"{before} {rs.call_id()}"


async def changing_async(values: list[int]) -> str:
    return changing(values)


@pytest.mark.parametrize("fn", [changing, changing_async])
@pytest.mark.parametrize("keeps", [False, True])
def test_call_id_stays_when_the_function_changes_its_list(
    fn: Any, keeps: bool, tmp_path: Path
) -> None:
    """The id of a stage is the id of the function with a policy; a journal finds the answer."""
    policy = rs.Policy(journal=rs.Journal(str(tmp_path), version="1") if keeps else None)
    lists = [[k] for k in range(5)]
    inputs = [pa.RecordBatch.from_pydict({"k": lists})]
    stage = rs.lookup(policy(fn), pa.string())
    found = [v for batch in stage.as_map_fn()(iter(inputs)) for v in batch.column(-1).to_pylist()]
    assert all(len(set(ids.split())) == 1 for ids in found)
    assert len(set(found)) == 5
    if not keeps:
        called = [policy(fn)([k]) for k in range(5)]
        if fn is changing_async:
            called = [asyncio.run(call) for call in called]
        assert called == found


def test_a_call_leaves_no_id_in_the_context_of_its_caller(tmp_path: Path) -> None:
    journal = rsf.Journal(str(tmp_path), version="1")
    assert rsf.Policy(journal=journal)(str)(1) == "1"
    with pytest.raises(RuntimeError, match="call_id is for the function of a stage"):
        rs.call_id()
