"""The ring of records: dtypes, copies, views, misuse. ``test_rings`` has the rest."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rstreams_fast.errors import OverlappingCallsError, RingClosed
from tests.core.conftest import BACKENDS, MODULES
from tests.helpers import DEADLINE, run_python, run_threads, start_thread, wait_for, wait_gone

DTYPES: list[Any] = [
    "u1",
    "f8",
    ">i4",
    "?",
    "S3",
    "U2",
    "M8[s]",
    "c16",
    "V5",
    [("t", "M8[ns]"), ("price", "f4"), ("name", "S3")],
    np.dtype([("a", "u1"), ("b", "f8")], align=True),
    [("outer", [("inner", "i2", (2, 3))])],
]
NO_SIZE: list[Any] = ["V0", "S0", ("i4", (0,)), [("a", "S0")], []]


def random_records(dtype: Any, count: int, seed: int = 0) -> np.ndarray:
    """Any bytes, which are valid records but for text and truth values."""
    dtype = np.dtype(dtype)
    size = dtype.itemsize * count
    values = np.random.default_rng(seed).integers(0, 2, size, dtype=np.uint8)
    return np.frombuffer(values.tobytes(), dtype.base).reshape(count, *dtype.shape).copy()


# -- construction ---------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("capacity", [1, 5, 8])
def test_what_goes_in_comes_out(core: Any, dtype: Any, capacity: int) -> None:
    ring = core.RecordRing(dtype, capacity)
    assert (ring.dtype, ring.capacity) == (np.dtype(dtype), capacity)
    records = random_records(dtype, 4 * capacity)
    for lap in range(4):  # round the end of the memory, at every place
        for count in (1, capacity // 2, capacity):
            given = records[lap * count : (lap + 1) * count]
            assert ring.write(given) == count
            assert len(ring) == count
            taken = ring.read()
            assert taken.dtype == np.dtype(dtype)
            assert taken.tobytes() == given.tobytes()
            assert len(ring) == 0


def test_a_sub_array_is_a_record(core: Any) -> None:
    ring = core.RecordRing(("f4", (2, 3)), 5)
    rows = np.arange(42, dtype="f4").reshape(7, 2, 3)
    assert ring.write(rows) == 5
    assert ring.read(3).tolist() == rows[:3].tolist()
    assert ring.write(rows[5:]) == 2
    view = ring.peek(3)
    assert view.shape == (3, 2, 3)
    assert view.tolist() == [*rows[3:5].tolist(), rows[5].tolist()]
    del view
    target = np.empty((9, 2, 3), "f4")
    assert ring.read_into(target) == 4
    assert target[:4].tolist() == rows[3:].tolist()
    for wrong in (np.zeros(6, "f4"), np.zeros((2, 3), "f4"), np.zeros((1, 3, 2), "f4")):
        with pytest.raises(ValueError, match=r"shape \(n, 2, 3\)"):
            ring.write(wrong)


@pytest.mark.parametrize(
    ("dtype", "raises", "words"),
    [
        (object, TypeError, "must be plain data, .*holds Python objects"),
        ("O", TypeError, "must be plain data, .*holds Python objects"),
        ([("a", "i4"), ("b", "O")], TypeError, "must be plain data, .*'b'"),
        ([("a", [("x", "f8"), ("y", [("z", "O", (2,))])])], TypeError, r".*'a\.y\.z'"),
        ((object, (3,)), TypeError, "must be plain data, .*holds Python objects"),
        ([("a", (object, (2, 2)))], TypeError, "must be plain data, .*'a'"),
        *((dtype, ValueError, "dtype must have a size") for dtype in NO_SIZE),
        *((dtype, TypeError, "dtype|data type|understood") for dtype in (None, "nonsense", 3.5)),
    ],
)
def test_dtype_is_checked(core: Any, dtype: Any, raises: type[Exception], words: str) -> None:
    with pytest.raises(raises, match=words):
        core.RecordRing(dtype, 4)


@pytest.mark.parametrize("dtype", ["S2147483647", "S2000000000"])
def test_more_memory_than_there_is_is_an_error(core: Any, dtype: str) -> None:
    with pytest.raises(MemoryError, match="no memory for a ring of"):
        core.RecordRing(dtype, 2**31)


def test_the_memory_is_aligned(core: Any) -> None:
    for dtype in ("u1", "c16", "V7"):
        ring = core.RecordRing(dtype, 9)
        assert ring.reserve(1).ctypes.data % 64 == 0


# -- copies ----------------------------------------------------------------------------------------
def test_read_gives_an_array_of_its_own(core: Any) -> None:
    ring = core.RecordRing("i8", 4)
    ring.write(np.arange(3))
    taken = ring.read()
    ring.write(np.arange(90, 94))
    assert taken.tolist() == [0, 1, 2]
    assert taken.flags.writeable


@pytest.mark.parametrize(
    "array",
    [
        np.arange(20, dtype="i4")[::3],
        np.arange(20, dtype="i4")[::-1],
        np.broadcast_to(np.int32(7), 9),
        np.arange(20, dtype="i4").reshape(4, 5)[:, 2],
        np.frombuffer(bytes(range(41)), "i4", offset=1),  # not aligned
        np.arange(5, dtype="i4").view(np.recarray),
    ],
    ids=["step", "backwards", "broadcast", "column", "unaligned", "subclass"],
)
def test_arrays_of_any_layout_are_written(core: Any, array: Any) -> None:
    ring = core.RecordRing("i4", 5)
    ring.write(np.zeros(3, "i4"))
    ring.read()
    assert ring.write(array) == min(5, len(array))
    assert ring.read().tolist() == np.asarray(array)[:5].tolist()


def wrong_arrays() -> list[Any]:
    no_arrays = [[1, 2], b"12345678", memoryview(bytes(8)), None, np.int32(3)]
    return [
        *((each, TypeError, "must be a numpy array") for each in no_arrays),
        *((np.zeros(2, dtype), TypeError, "dtype") for dtype in ("i8", ">i4", "u4", "V4", object)),
        (np.ma.masked_array(np.zeros(2, "i4"), mask=[1, 0]), TypeError, "mask"),
        *((np.zeros(shape, "i4"), ValueError, "shape") for shape in ((2, 2), ())),
    ]


@pytest.mark.parametrize("call", ["write", "put", "read_into"])
def test_what_does_not_fit_is_refused_by_name(core: Any, call: str) -> None:
    ring = core.RecordRing("<i4", 4)
    ring.write(np.arange(2, dtype="i4"))
    for array, kind, name in wrong_arrays():
        with pytest.raises(kind, match=f"array must .*{name}|array {name}"):
            getattr(ring, call)(array)
    assert ring.read().tolist() == [0, 1]


def test_fields_at_other_places_are_another_dtype(core: Any) -> None:
    here = np.dtype({"names": ["a"], "formats": ["i4"], "offsets": [0], "itemsize": 8})
    there = np.dtype({"names": ["a"], "formats": ["i4"], "offsets": [4], "itemsize": 8})
    with pytest.raises(TypeError, match="dtype"):
        core.RecordRing(here, 4).write(np.zeros(2, there))


def test_read_into_needs_one_writable_piece(core: Any) -> None:
    ring = core.RecordRing("i4", 4)
    ring.write(np.arange(4, dtype="i4"))
    with pytest.raises(ValueError, match="contiguous"):
        ring.read_into(np.zeros(8, "i4")[::2])
    frozen = np.zeros(4, "i4")
    frozen.flags.writeable = False
    for read_only in (frozen, np.frombuffer(bytes(16), "i4")):
        with pytest.raises(ValueError, match="read-only"):
            ring.read_into(read_only)
    assert frozen.tolist() == [0] * 4
    assert len(ring) == 4


def test_an_array_that_lies_about_itself(core: Any) -> None:
    class Liar(np.ndarray):
        dtype = np.dtype("i4")  # type: ignore[assignment]
        shape = (10**9,)
        nbytes = 4 * 10**9

        def __len__(self) -> int:
            return 10**9

    ring = core.RecordRing("i4", 4)
    liar = np.arange(2, dtype="i4").view(Liar)
    assert ring.write(liar) == 2
    assert ring.read_into(liar) == 2
    with pytest.raises(TypeError, match="dtype"):
        ring.write(np.arange(2, dtype="i8").view(Liar))


# -- views -----------------------------------------------------------------------------------------
def test_peek_and_release_read_in_place(core: Any) -> None:
    ring = core.RecordRing("i8", 6)
    ring.write(np.arange(5))
    view = ring.peek(3)
    assert view.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 9
    with pytest.raises(ValueError):
        view.flags.writeable = True
    del view
    assert len(ring) == 5
    ring.release(2)
    assert ring.peek(9).tolist() == [2, 3, 4]
    ring.release(3)
    assert ring.peek(9).tolist() == []
    ring.release(0)
    ring.write(np.arange(6))
    assert ring.peek(9).tolist() == [0, 1, 2]  # up to the end of the memory
    ring.release(3)
    assert ring.peek(9).tolist() == [3, 4, 5]


DERIVED: dict[str, Callable[[Any], Any]] = {
    "itself": lambda view: view,
    "slice": lambda view: view[1:],
    "view": lambda view: view.view("u1"),
    "memoryview": memoryview,
    "base": lambda view: view.base,
    "field of a subclass": lambda view: view.view(np.recarray)[:2][1:],
    "iterator": lambda view: view.flat,
    "memoryview of the base": lambda view: memoryview(view.base)[1:],
}


@pytest.mark.parametrize("derived", DERIVED.values(), ids=DERIVED)
def test_nothing_moves_while_a_view_lives(core: Any, derived: Callable[[Any], Any]) -> None:
    ring = core.RecordRing("i8", 8)
    ring.write(np.arange(3))
    target = np.zeros(2, "i8")
    one = np.arange(1)
    kept = derived(ring.reserve(3))
    for call, argument in ((ring.commit, 1), (ring.commit, 0), (ring.write, one), (ring.put, one)):
        with pytest.raises(BufferError, match="while a view of the reserved records lives"):
            call(argument)
    assert ring.read(1).tolist() == [0]  # the other side is free
    del kept
    ring.commit(1)
    kept = derived(ring.peek(2))
    calls = [(ring.release, 1), (ring.release, 0), (ring.read_into, target)]
    for call, *arguments in (*calls, (ring.read,), (ring.get,)):
        with pytest.raises(BufferError, match="while a view of the peeked records lives"):
            call(*arguments)
    assert ring.write(np.arange(1)) == 1
    del kept
    ring.release(1)
    assert len(ring) == 3


def test_a_view_outlives_the_ring(core: Any) -> None:
    ring = core.RecordRing("i8", 1000)
    ring.write(np.arange(500))
    reading, writing = ring.peek(400), ring.reserve(400)
    ring.close()
    watched = weakref.ref(ring)
    del ring
    wait_gone(watched)
    writing[:] = reading
    assert writing.tolist() == list(range(400))


def test_what_views_stand_on_cannot_be_misused(core: Any) -> None:
    ring = core.RecordRing("i8", 4)
    view = ring.reserve(4)
    below = view.base.obj
    del view
    assert memoryview(below).nbytes >= 4 * 8
    kept: Any = memoryview(below)
    with pytest.raises(BufferError):
        ring.commit(1)
    kept = np.frombuffer(below, "u1")
    with pytest.raises(BufferError):
        ring.write(np.arange(1))
    del kept
    if core.__name__.endswith("_cython"):
        for arguments in ((), (None,), (None, True), (ring, False), (below, True)):
            with pytest.raises(TypeError):
                type(below)(*arguments)
    del below
    ring.commit(1)
    assert len(ring) == 1


def test_records_of_one_ring_are_written_to_another_and_to_itself(core: Any) -> None:
    one, other = core.RecordRing("i8", 8), core.RecordRing("i8", 8)
    one.write(np.arange(4))
    view = one.peek(4)
    assert other.write(view) == 4
    assert one.write(view[1:]) == 3
    room = other.reserve(2)
    assert one.write(room) == 1
    del view
    assert one.read_into(room) == 2
    del room
    other.commit(2)
    assert other.read().tolist() == [0, 1, 2, 3, 0, 1]


def test_other_peoples_memory_holds_while_it_is_copied(core: Any) -> None:
    """numpy resizes no array that somebody looks at, even if it is told not to care."""
    count = 2_000_000
    ring = core.RecordRing("u1", count)
    array = np.zeros(count, "u1")
    stop = threading.Event()
    refused = 0

    def resize() -> None:
        nonlocal refused
        while not stop.is_set():
            try:
                array.resize(count + 1, refcheck=False)
                array.resize(count, refcheck=False)
            except ValueError:
                refused += 1

    thread = start_thread(resize)
    target = np.empty(count, "u1")
    try:
        for _ in range(100):
            # What is written meanwhile may be anything, and of either length.
            assert ring.write(array) == count
            assert ring.read_into(target) == count
    finally:
        stop.set()
    thread.result()
    assert not target.any()


# -- closing and waiting --------------------------------------------------------------------------
def test_put_puts_all_of_what_is_larger_than_the_ring(core: Any) -> None:
    ring = core.RecordRing("i8", 3)
    for array in (np.arange(20), np.arange(60)[::3]):
        putter = start_thread(lambda array=array: ring.put(array, timeout=DEADLINE))
        taken: list[int] = []
        while len(taken) < 20:
            taken += ring.get(timeout=DEADLINE).tolist()
        putter.result()
        assert taken == array.tolist()


def test_put_that_ends_early_says_how_much_was_put_in(core: Any) -> None:
    ring = core.RecordRing("i8", 3)
    ring.write(np.arange(1))
    with pytest.raises(TimeoutError) as raised:
        ring.put(np.arange(1, 9), timeout=0.01)
    assert raised.value.__notes__ == ["put: 2 of 8 records were put in"]
    putter = start_thread(lambda: ring.put(np.arange(9, 20), timeout=DEADLINE))
    assert ring.get(timeout=DEADLINE).tolist() == [0, 1, 2]
    more = threading.Event()
    if ring.arm(more.set):
        wait_for(more)
    ring.close()
    with pytest.raises(RingClosed) as closed:
        putter.result()
    assert closed.value.__notes__ == ["put: 3 of 11 records were put in"]
    assert ring.read().tolist() == [9, 10, 11]


async def test_a_coroutine_puts_and_gets_whole_arrays(core: Any) -> None:
    async def take(count: int) -> list[int]:
        taken: list[int] = []
        while len(taken) < count:
            taken += (await ring.aget()).tolist()
        return taken

    ring = core.RecordRing("i8", 2)
    with pytest.raises(TypeError, match="dtype"):
        await ring.aput(np.zeros(1))
    with pytest.raises(ValueError, match="max"):
        await ring.aget(0)
    with pytest.raises(TimeoutError) as late:
        async with asyncio.timeout(0.01):
            await ring.aput(np.arange(5))
    assert late.value.__cause__ is not None
    assert late.value.__cause__.__notes__ == ["aput: 2 of 5 records were put in"]
    view = ring.peek(1)
    with pytest.raises(BufferError, match="aget while a view"):
        await ring.aget()
    del view
    assert (await ring.aget()).tolist() == [0, 1]
    await ring.aput(np.arange(0))
    _, taken = await asyncio.gather(ring.aput(np.arange(5)), take(5))
    assert taken == [0, 1, 2, 3, 4]


def test_one_thread_to_another_nothing_lost_nothing_torn(core: Any) -> None:
    dtype = np.dtype([("n", "i8"), ("twice", "i8"), ("pad", "V3")])
    for capacity, burst, total in [(1, 3, 300), (100, 77, 20_000), (9000, 6000, 200_000)]:
        ring = core.RecordRing(dtype, capacity)

        def produce(ring: Any = ring, burst: int = burst, total: int = total) -> None:
            records = np.zeros(total, dtype)
            records["n"] = np.arange(total)
            records["twice"] = 2 * records["n"]
            for sent in range(0, total, burst):
                ring.put(records[sent : sent + burst], timeout=DEADLINE)
            ring.close()

        def consume(ring: Any = ring) -> int:
            seen = 0
            try:
                while True:
                    taken = ring.get(timeout=DEADLINE)
                    assert taken["n"].tolist() == list(range(seen, seen + len(taken)))
                    assert (taken["twice"] == 2 * taken["n"]).all()
                    seen += len(taken)
            except RingClosed:
                return seen

        assert run_threads([produce, consume]) == [None, total]


def test_misuse_from_many_threads_corrupts_nothing(core: Any) -> None:
    """Whatever is called by whomever: errors, and plain memory of the right size."""
    ring = core.RecordRing("i8", 5000)
    array = np.arange(9000)
    expected = (OverlappingCallsError, BufferError, ValueError, TimeoutError)

    def hammer(seed: int) -> Callable[[], None]:
        def run() -> None:
            random = np.random.default_rng(seed)
            target = np.empty(9000, "i8")
            kept: Any = None
            for _ in range(400):
                k = int(random.integers(0, 9000))
                calls: list[Any] = [
                    (ring.write, array[:k]),
                    (ring.read, k),
                    (ring.read_into, target[:k]),
                    (ring.reserve, k),
                    (ring.peek, k),
                    (ring.commit, k // 4),
                    (ring.release, k // 4),
                    (ring.get, k + 1, 0),
                    (ring.put, array[k:], 0),
                ]
                call, *arguments = calls[int(random.integers(len(calls)))]
                try:
                    kept = call(*arguments)
                except expected:
                    kept = None
                assert 0 <= len(ring) <= 5000
            if isinstance(kept, np.ndarray):
                kept.sum()

        return run

    run_threads([hammer(seed) for seed in range(4)], timeout=100)


def test_large_copies_let_other_threads_run(core: Any) -> None:
    """A second thread is refused in the middle of a copy: it could not try if the GIL were held."""
    size = 1 << 26
    ring = core.RecordRing("u1", size)
    array = np.zeros(size, "u1")
    refused = threading.Event()
    deadline = time.monotonic() + DEADLINE

    def try_between_the_copies() -> None:
        while not refused.is_set() and time.monotonic() < deadline:
            try:
                ring.commit(0)
            except OverlappingCallsError:
                refused.set()

    thread = start_thread(try_between_the_copies)
    while not refused.is_set() and time.monotonic() < deadline:
        with contextlib.suppress(OverlappingCallsError):
            assert ring.write(array) == size
            ring.read_into(array)
    thread.result()
    assert refused.is_set()


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_numpy_it_says_what_is_missing(backend: str) -> None:
    program = (
        "import sys, importlib; sys.modules['numpy'] = None\n"
        f"ring = importlib.import_module({MODULES[backend]!r}).RecordRing\n"
        "try:\n    ring('f8', 4)\n"
        "except ImportError as missing:\n    print(missing)\n"
    )
    done = run_python("-c", program)
    assert "a RecordRing needs numpy" in done.stdout, done.stderr
    assert "pip install 'rstreams_fast[numpy]'" in done.stdout
