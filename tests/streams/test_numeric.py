"""numpy and Arrow at the ends of streams, and the boundary of records between them."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import rstreams_fast as rsf
from rstreams_fast.errors import AlreadySubscribedError
from tests.helpers import Problem, run_python
from tests.rules.probes import ManualPublisher, Recorder, Synchronous, send, subscribed
from tests.stepping import steps
from tests.streams.loops import executor_of

SAMPLES = np.arange(1000.0)


# -- from_numpy -----------------------------------------------------------------------------------
@pytest.mark.parametrize("rows", [0, 1, 9, 10, 11, 100])
@pytest.mark.parametrize("chunk", [1, 10, 10**30])
def test_from_numpy_gives_the_rows_by_chunks(rows: int, chunk: int) -> None:
    array = np.arange(3 * rows).reshape(rows, 3)
    parts = rsf.from_numpy(array, chunk=chunk).to_list()
    assert all(0 < len(part) <= chunk for part in parts)
    assert [row for part in parts for row in part.tolist()] == array.tolist()
    assert all(len(part) == chunk for part in parts[:-1])


def test_its_elements_are_views() -> None:
    array = np.arange(10)
    for part in rsf.from_numpy(array, chunk=4):
        assert np.shares_memory(part, array)
        part += 1
    assert array.tolist() == list(range(1, 11))
    array.flags.writeable = False
    first = rsf.from_numpy(array, chunk=4).first()
    assert not first.flags.writeable
    assert rsf.from_numpy(array[::3], chunk=2).map(lambda x: x.tolist()).to_list() == [
        [1, 4],
        [7, 10],
    ]


@pytest.mark.parametrize(
    ("array", "raises"),
    [([1, 2], TypeError), (np.float64(3), TypeError), (np.array(3.0), ValueError)],
)
def test_from_numpy_refuses_what_has_no_rows(array: Any, raises: type[Exception]) -> None:
    with pytest.raises(raises, match="array"):
        rsf.from_numpy(array)


# -- to_numpy -------------------------------------------------------------------------------------
def collect(stream: Any, how: str, **options: Any) -> np.ndarray:
    stream = rsf.from_publisher(stream)
    if how == "blocking":
        return stream.to_numpy(**options)
    return asyncio.run(stream.to_numpy_async(**options))


both = pytest.mark.parametrize("how", ["blocking", "async"])


@both
@pytest.mark.parametrize(
    "dtype", ["f8", ">i2", "?", "M8[s]", "S3", [("a", "i4"), ("b", "f8")], ("i2", (2, 3))]
)
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_to_numpy_is_the_way_back(how: str, dtype: Any, chunk: int) -> None:
    array = np.zeros(1000, dtype)
    array.view("u1")[::3] = 1
    back = collect(rsf.from_numpy(array, chunk=chunk), how)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()
    assert not np.shares_memory(back, array)


PROMOTED = [np.zeros(2, "i2"), np.ones(2, "i4"), np.full(2, 2.5, "f4")]


@both
@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        ([], np.zeros(0)),
        (range(5000), np.arange(5000)),
        ([True, 2, 2.5, np.float32(4), np.array(5)], np.array([1, 2, 2.5, 4, 5])),
        ([1, 2, np.arange(3), 3.5], np.array([1, 2, 0, 1, 2, 3.5])),
        (PROMOTED, np.array([0, 0, 1, 1, 2.5, 2.5])),
        (["a", "bcd"], np.array(["a", "bcd"])),
        ([np.array(["a"]), np.array(["bcd"])], np.array(["a", "bcd"])),
        ([np.zeros((0, 3)), np.ones((2, 3))], np.ones((2, 3))),
    ],
    ids=str,
)
def test_elements_become_rows_of_one_dtype(how: str, elements: Any, expected: Any) -> None:
    result = collect(rsf.from_iterable(elements), how)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert result.tolist() == expected.tolist()


A_NANOSECOND = np.datetime64("2000-01-01T00:00:00.000000001")
DAYS = [dt.date(2013, 1, day) for day in (1, 2)]
DAY_IN_SECONDS = np.array(["2013-01-01", "NaT"], "M8[s]").tolist()


@both
@pytest.mark.parametrize(
    ("elements", "dtype", "expected"),
    [
        ([], "i2", []),
        (PROMOTED, "f4", [0, 0, 1, 1, 2.5, 2.5]),
        (DAYS, "M8[D]", DAYS),
        ([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8")], [(1, 2.5), (3, 4.5)]),
        ([0, 1, 255], "u1", [0, 1, 255]),
        ([np.array([[0, 255], [7, 8]])], "u1", [[0, 255], [7, 8]]),
        ([np.zeros(0, "i8"), np.array([3])], "u1", [3]),
        ([1, 2**63], "u8", [1, 2**63]),
        ([1, 2**70], "f4", [1, 2**70]),
        ([2**70], object, [2**70]),
        ([Decimal(3), Fraction(4)], "i2", [3, 4]),
        ([Fraction(1, 2), 2], "f4", [0.5, 2]),
        ([1.5, math.inf], "f4", [1.5, math.inf]),
        ([123, 4], "U3", ["123", "4"]),
        (["abc", "d"], "U3", ["abc", "d"]),
        (["abc", np.array(["defgh"])], str, ["abc", "defgh"]),
        ([dt.date(2013, 1, 1), np.datetime64("NaT", "s")], "M8[s]", DAY_IN_SECONDS),
        (
            [np.array([(300, 1.5)], [("a", "i4"), ("b", "f8")])],
            [("a", "i2"), ("b", "f4")],
            [(300, 1.5)],
        ),
    ],
)
def test_what_fits_is_cast(how: str, elements: list[Any], dtype: Any, expected: Any) -> None:
    result = collect(rsf.from_iterable(elements), how, dtype=dtype)
    assert result.tolist() == expected
    if dtype is not str:
        assert result.dtype == np.dtype(dtype)


@both
@pytest.mark.parametrize(
    ("elements", "dtype", "raises", "words"),
    [
        ([2**40], "i4", OverflowError, "int32.*1099511627776 does not fit"),
        ([np.array([[1, 2], [2**40, 3]])], "i4", OverflowError, "int32.*1099511627776"),
        ([-1], "u8", OverflowError, "uint64.*-1 does not fit"),
        ([np.array([2**63], "u8")], "i8", OverflowError, "int64.*9223372036854775808"),
        ([-1, 2**63], "u8", OverflowError, "uint64.*-1 does not fit"),
        ([2**70], "i8", OverflowError, "int64.*1180591620717411303424"),
        ([10**400], "f8", OverflowError, "float64"),
        ([1.0, 1e300], "f4", OverflowError, r"float32.*1e\+300"),
        ([np.array([1e300])], "f4", OverflowError, r"float32.*1e\+300"),
        ([70000], "f2", OverflowError, "float16.*70000"),
        ([1e300j], "c8", OverflowError, "complex64"),
        ([Decimal("1e400")], "f8", OverflowError, r"float64.*1E\+400"),
        ([Decimal("1.5")], "i4", ValueError, "int32.*1.5.* would be cut"),
        (["abc"], "U2", ValueError, "U2.*abc.* would be cut"),
        ([np.array([b"abc"])], "S2", ValueError, "S2.*abc.* would be cut"),
        ([123], "U2", ValueError, "U2.*123.* would be cut"),
        ([Decimal("1.5")], "U2", ValueError, "U2.*1.5.* would be cut"),
        ([np.array([b"abc"], "V3")], "V2", ValueError, "V2"),
        ([dt.date(9999, 1, 1)], "M8[ns]", OverflowError, "9999-01-01"),
        ([np.datetime64("5000-01-01"), A_NANOSECOND], "M8[ns]", OverflowError, "5000-01-01"),
        (
            [np.array([2**64 - 1], "u8")],
            "m8[s]",
            OverflowError,
            "timedelta64.*18446744073709551615",
        ),
        ([np.array([-(2**63)])], "m8[s]", OverflowError, "-9223372036854775808"),
        ([np.array([(70000,)], [("a", "i4")])], [("a", "i2")], OverflowError, "int16.*70000"),
        ([1.5], "i4", TypeError, "cannot cast float64"),
        ([2], "?", TypeError, "cannot cast int64"),
        (PROMOTED, "i8", TypeError, "cannot cast float32"),
        ([[1, 2]], None, TypeError, "arrays or scalars, got list"),
        ([{}], None, TypeError, "arrays or scalars, got dict"),
        ([1, object()], None, TypeError, "arrays or scalars, got object"),
        ([np.ma.masked_equal(np.arange(3), 1)], None, TypeError, "the mask of a masked array"),
        (np.ma.masked_equal(np.arange(3), 1), None, TypeError, "the mask of a masked array"),
        ([1, 2**70], None, OverflowError, "1180591620717411303424 has more than 64 bits"),
        ([np.zeros((2, 3)), np.zeros((2, 4))], None, ValueError, "in all dimensions but the first"),
        ([np.zeros((2, 3)), 1], None, ValueError, "agree in all dimensions but the first"),
    ],
)
def test_what_does_not_fit_or_would_lose_more_than_precision_is_refused(
    how: str, elements: list[Any], dtype: Any, raises: type[Exception], words: str
) -> None:
    with pytest.raises(raises, match=words):
        collect(rsf.from_iterable(elements), how, dtype=dtype)


@both
@pytest.mark.parametrize("fields", [False, True])
def test_dates_of_two_units_that_do_not_fit_in_one_are_refused(how: str, fields: bool) -> None:
    dtypes: list[Any] = [[("t", "M8[D]")], [("t", "M8[ns]")]] if fields else ["M8[D]", "M8[ns]"]
    near, far, moment = (
        np.array([date], "M8[ns]" if date == A_NANOSECOND else "M8[D]")
        for date in ("2000-01-01", "5000-01-01", A_NANOSECOND)
    )
    days, moments = (near.view(dtypes[0]), far.view(dtypes[0])), moment.view(dtypes[1])
    fitting = collect(rsf.from_iterable([days[0], moments]), how)
    assert fitting.dtype == np.dtype(dtypes[1])
    assert fitting.view("M8[ns]").tolist() == [near.astype("M8[ns]").item(), moment.item()]
    for parts in ([days[1], moments], [moments, days[1]]):
        with pytest.raises(OverflowError, match="5000-01-01"):
            collect(rsf.from_iterable(parts), how)
        if not fields:
            with pytest.raises(OverflowError, match="5000-01-01"):
                collect(rsf.from_iterable([part[0] for part in parts]), how)


def test_the_source_may_use_the_memory_of_an_array_again() -> None:
    buffer = np.empty(2)

    def fill(n: int) -> Any:
        buffer[:] = n
        return buffer

    expected = [float(n) for n in range(1000) for _ in range(2)]
    assert rsf.range_(1000).map(fill).to_numpy().tolist() == expected
    assert rsf.from_iterable(map(fill, range(1000))).to_numpy().tolist() == expected
    records = rsf.from_iterable(map(fill, range(1000))).publish_records_on("f8", capacity=5)
    assert records.to_numpy().tolist() == expected


def test_an_element_that_does_not_fit_cancels_upstream() -> None:
    publisher = Synchronous(make=lambda n: np.zeros((2,) * (n + 1)))
    with pytest.raises(ValueError, match="dimensions"):
        rsf.from_publisher(publisher).to_numpy()
    assert (publisher.sent, publisher.cancels) == (2, 1)


def test_the_result_has_no_room_to_spare_and_grows_by_doubling() -> None:
    allocated = 0

    def note(_frame: object, event: str, function: object) -> None:
        nonlocal allocated
        allocated += event == "c_call" and function is np.empty

    parts = np.split(np.arange(100_000.0), 1000)
    sys.setprofile(note)
    try:
        result = rsf.from_iterable(parts).to_numpy()
    finally:
        sys.setprofile(None)
    assert result.tolist() == list(range(100_000))
    assert result.base is None
    assert result.nbytes == 8 * 100_000
    assert 0 < allocated < 10


# -- Arrow ----------------------------------------------------------------------------------------

TABLE = pa.table({"a": list(range(10)), "b": [f"text {i}" for i in range(10)]})


def addresses(table: Any) -> set[int]:
    return {
        buffer.address
        for column in table.columns
        for chunk in getattr(column, "chunks", [column])
        for buffer in chunk.buffers()
        if buffer is not None and buffer.size
    }


def test_a_table_there_and_back_without_a_copy() -> None:
    stream = rsf.from_arrow(TABLE, chunk=3)
    batches = stream.to_list()
    assert [batch.num_rows for batch in batches] == [3, 3, 3, 1]
    assert all(isinstance(batch, pa.RecordBatch) for batch in batches)
    assert all(addresses(batch) <= addresses(TABLE) for batch in batches)
    back = stream.to_arrow()
    assert back.equals(TABLE)
    assert addresses(back) == addresses(TABLE)
    assert asyncio.run(stream.to_arrow_async()).equals(TABLE)


def only(data: Any, method: str) -> Any:
    """An object that has one method of the interface, as its type has it."""
    kind = type("Only", (), {method: lambda _self, *args, **kw: getattr(data, method)(*args, **kw)})
    return kind()


def test_all_that_has_the_interface_is_welcome() -> None:
    batch = TABLE.to_batches()[0]
    for source in (
        only(TABLE, "__arrow_c_stream__"),
        only(batch, "__arrow_c_array__"),
        batch,
        pa.StructArray.from_arrays([[1, 2], ["x", "y"]], ["a", "b"]),
    ):
        first, again = (rsf.from_arrow(source).to_arrow() for _ in range(2))
        assert first.equals(again)
        assert first.column_names == ["a", "b"]
        assert rsf.from_arrow(source, chunk=2).first().num_rows == 2
    elements = [only(batch, "__arrow_c_array__"), only(TABLE, "__arrow_c_stream__"), TABLE]
    assert rsf.from_iterable(elements).to_arrow().equals(pa.concat_tables([TABLE] * 3))


def test_pandas_frames() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"x": [1.5, 2.5], "y": ["a", "b"]})
    if not hasattr(frame, "__arrow_c_stream__"):
        pytest.skip("pandas before 2.2 has no Arrow interface")
    assert rsf.from_arrow(frame).to_arrow().to_pylist() == frame.to_dict("records")


def test_a_reader_is_read_as_it_is_asked_for_and_once() -> None:
    read: list[int] = []

    def batches() -> Iterator[Any]:
        for n in range(5):
            read.append(n)
            yield pa.RecordBatch.from_pydict({"n": [n]})

    def reader() -> Any:
        return pa.RecordBatchReader.from_batches(pa.schema([("n", pa.int64())]), batches())

    stream = rsf.from_arrow(reader())
    recorder = subscribed(stream, 2)
    assert read == [0, 1]
    assert recorder.elements[1].to_pydict() == {"n": [1]}
    recorder.subscription.cancel()
    with pytest.raises(AlreadySubscribedError, match="RecordBatchReader, which can be read once"):
        stream.to_list()
    read.clear()
    assert rsf.from_arrow(reader()).take(2).to_arrow()["n"].to_pylist() == [0, 1]
    assert read == [0, 1]


def test_a_reader_of_another_library_is_read_once() -> None:
    class OtherReader:
        def __init__(self) -> None:
            self.reader = pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches())

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return self.reader.__arrow_c_stream__(requested_schema)

        def __iter__(self) -> OtherReader:
            return self

        def __next__(self) -> Any:
            return self.reader.read_next_batch()

    stream = rsf.from_arrow(OtherReader())
    assert stream.to_arrow().equals(TABLE)
    with pytest.raises(AlreadySubscribedError, match="OtherReader, which can be read once"):
        stream.to_list()


def test_a_schema_that_is_asked_for() -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.string())])
    if hasattr(pa.RecordBatchReader, "from_stream"):  # else a table cannot cast: pyarrow 14
        assert rsf.from_arrow(TABLE, schema=schema).to_arrow().schema == schema
    assert rsf.empty().to_arrow(schema=schema).schema == schema
    assert rsf.empty().to_arrow().num_rows == 0
    with pytest.raises(ValueError, match="one schema; first a: int32, b: string, then a: int64"):
        rsf.from_arrow(TABLE).to_arrow(schema=schema)
    assert rsf.from_iterable([TABLE.slice(0, 0)]).to_arrow().schema == TABLE.schema


@pytest.mark.parametrize("element", [1, {"a": 1}, np.zeros(3), b"bytes"])
def test_what_is_not_arrow_is_refused(element: Any) -> None:
    with pytest.raises(TypeError, match=f"tabular Arrow data .*, got {type(element).__name__}"):
        rsf.from_iterable([element]).to_arrow()
    with pytest.raises(TypeError, match="__arrow_c_stream__ or __arrow_c_array__"):
        rsf.from_arrow(element)


@pytest.mark.parametrize("source", [pa.array([1, 2]), pa.chunked_array([[1], [2]])])
def test_an_array_that_is_no_table_is_refused(source: Any) -> None:
    if not hasattr(source, "__arrow_c_array__") and not hasattr(source, "__arrow_c_stream__"):
        pytest.skip("before pyarrow 16 a chunked array has no Arrow interface")
    with pytest.raises(TypeError, match=r"source must be tabular.*not an array of int64"):
        rsf.from_arrow(source)


@pytest.mark.skipif(
    not hasattr(pa.ChunkedArray, "__arrow_c_stream__"),
    reason="before pyarrow 16 a chunked array has no Arrow interface",
)
def test_chunks_of_structs_are_a_table() -> None:
    rows = pa.StructArray.from_arrays([[1, 2]], ["a"])
    assert rsf.from_arrow(pa.chunked_array([rows])).to_arrow().column_names == ["a"]


def test_rows_without_columns_are_counted() -> None:
    rows = TABLE.select([])
    assert rsf.from_arrow(rows, chunk=3).to_arrow().num_rows == 10
    assert rsf.from_iterable([rows, rows.to_batches()[0]]).to_arrow().num_rows == 20


def test_an_error_of_two_schemas_names_what_may_not_be_null() -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    parts = [pa.RecordBatch.from_pydict({"n": [1]}), schema.empty_table()]
    with pytest.raises(ValueError, match=r"first n: int64, then n: int64 not null$"):
        rsf.from_iterable(parts).to_arrow()


def test_a_table_of_no_rows_needs_a_schema_on_its_way_back() -> None:
    nothing = TABLE.schema.empty_table()
    assert rsf.from_arrow(nothing).to_arrow().column_names == []
    assert rsf.from_arrow(nothing).to_arrow(schema=nothing.schema).equals(nothing)


def gather_arrow(stream: Any, how: str) -> Any:
    return stream.to_arrow() if how == "blocking" else asyncio.run(stream.to_arrow_async())


@both
def test_all_kinds_of_tabular_data_in_one_stream_keep_their_order(how: str) -> None:
    def one(n: int) -> Any:
        batch = pa.RecordBatch.from_pydict({"n": [n]})
        kinds = [batch, batch, pa.table(batch), only(pa.table(batch), "__arrow_c_stream__"), batch]
        return kinds[n % len(kinds)]

    table = gather_arrow(rsf.range_(600).map(one), how)
    assert table["n"].to_pylist() == list(range(600))
    assert table.equals(gather_arrow(rsf.range_(600).map(one).publish_on(), how))


@both
@pytest.mark.parametrize("wrong", [pa.RecordBatch.from_pydict({"m": [1]}), 7, "text"])
def test_a_wrong_batch_among_many_is_named_and_cancels_upstream(how: str, wrong: Any) -> None:
    pulled: list[int] = []
    closed: list[bool] = []

    def batches() -> Iterator[Any]:
        right = pa.RecordBatch.from_pydict({"n": [1]})
        try:
            for n in itertools.count():
                pulled.append(n)
                yield wrong if n == 1000 else right
        finally:
            closed.append(True)

    is_batch = isinstance(wrong, pa.RecordBatch)
    words = "first n: int64, then m: int64" if is_batch else f"got {type(wrong).__name__}"
    with pytest.raises(ValueError if is_batch else TypeError, match=words):
        gather_arrow(rsf.from_iterable(batches()), how)
    assert closed == [True]
    assert len(pulled) <= 1000 + 256


@pytest.mark.usefixtures("slow_sources")
def test_a_wrong_batch_of_a_slow_source_is_noticed_soon() -> None:
    pulled: list[int] = []

    def slowly(n: int) -> Any:
        pulled.append(n)
        return pa.RecordBatch.from_pydict({"m" if n == 3 else "n": [n]})

    with pytest.raises(ValueError, match="then m: int64"):
        rsf.range_(10_000).map(slowly).to_arrow()
    assert len(pulled) <= 3 + 8


def test_an_interrupt_out_of_an_element_leaves_to_arrow() -> None:
    class Interrupting:
        def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
            raise KeyboardInterrupt

    closed: list[bool] = []

    def elements() -> Iterator[Any]:
        try:
            yield Interrupting()
            yield Interrupting()
        finally:
            closed.append(True)

    with pytest.raises(KeyboardInterrupt):
        rsf.from_iterable(elements()).to_arrow()
    assert closed == [True]


@pytest.mark.parametrize(
    ("missing", "calls"),
    [
        (
            "numpy",
            ["range_(3).to_numpy()", "from_numpy(None)", "range_(3).publish_records_on('f8')"],
        ),
        (
            "pyarrow",
            ["empty().to_arrow()", "from_arrow(type('T', (), {'__arrow_c_stream__': 1})())"],
        ),
        ("reactivex", ["import rstreams_fast.interop.reactivex"]),
        ("rsocket", ["import rstreams_fast.interop.rsocket"]),
    ],
)
def test_without_its_library_each_says_what_is_missing(missing: str, calls: list[str]) -> None:
    program = (
        f"import sys; sys.modules.update({{{missing!r}: None, 'reactivestreams': None}})\n"
        "from rstreams_fast import *\n"
    )
    for call in calls:
        program += f"try:\n    {call}\nexcept ImportError as missing:\n    print(missing)\n"
    done = run_python("-c", program)
    said = f"needs {missing}, which is not installed: pip install"
    assert done.stdout.count(said) == len(calls), done.stderr


# -- publish_records_on ---------------------------------------------------------------------------
def recorded(
    request: Any = ..., *, dtype: Any = "i8", **how: Any
) -> tuple[ManualPublisher, Recorder]:
    """What is above records on the caller, and what is below."""
    publisher = ManualPublisher()
    stream = rsf.from_publisher(publisher).publish_records_on(dtype, "caller", **how)
    return publisher, subscribed(stream, request)


@pytest.mark.parametrize("kind", ["own worker", "pool", "caller", "loop"])
@pytest.mark.parametrize("given", [1, 100])
@pytest.mark.parametrize(("capacity", "chunk"), [(1, None), (10, 3), (5000, 100)])
def test_records_pass_in_order_and_in_other_pieces(
    kind: str, given: int, capacity: int, chunk: int | None
) -> None:
    numbers = rsf.from_numpy(SAMPLES, chunk=given)
    with executor_of(kind) as executor:
        parts = numbers.publish_records_on("f8", executor, capacity=capacity, chunk=chunk).to_list()
    assert all(0 < len(part) <= (chunk or capacity) for part in parts)
    assert all(part.base is None or part.base.base is None for part in parts)
    assert not any(np.shares_memory(part, SAMPLES) for part in parts)
    assert np.concatenate(parts).tolist() == SAMPLES.tolist()


def test_records_of_several_kinds() -> None:
    dtype = [("t", "M8[s]"), ("x", "f4", (2,))]
    array = np.zeros(50, dtype)
    array["x"] = np.arange(100).reshape(50, 2)
    out = rsf.from_numpy(array, chunk=8).publish_records_on(dtype, capacity=11).to_numpy()
    assert out.tobytes() == array.tobytes()
    rows = np.arange(60, dtype="i2").reshape(20, 3)
    stream = rsf.from_numpy(rows[:, ::-1], chunk=6).publish_records_on(("i2", (3,)), capacity=7)
    assert stream.to_numpy().tolist() == rows[:, ::-1].tolist()


def test_no_more_is_held_than_the_capacity_and_one_array() -> None:
    publisher, recorder = recorded(capacity=10, chunk=4)
    assert publisher.requests == [1]
    publisher.subscriber.on_next(np.arange(8))
    assert publisher.requests == [1, 1]
    publisher.subscriber.on_next(np.arange(8, 15))  # two of these fit
    assert publisher.requests == [1, 1]
    (figures,) = rsf.metrics_of(recorder.subscription)
    assert (figures.held, figures.max_held, figures.held_bytes) == (10, 10, 80)
    described = rsf.empty().publish_records_on("i8", "caller", capacity=10, chunk=4).describe()
    assert figures.name == described.split("  | ")[-1].split("\n")[0]
    recorder.subscription.request(1)
    assert [part.tolist() for part in recorder.elements] == [[0, 1, 2, 3]]
    assert publisher.requests == [1, 1]  # four more fit, of five
    recorder.subscription.request(1)
    assert publisher.requests == [1, 1, 1]
    publisher.subscriber.on_next(np.arange(0))  # holds nothing, and is one all the same
    assert publisher.requests == [1, 1, 1, 1]
    publisher.subscriber.on_complete()
    recorder.subscription.request(9)
    assert np.concatenate(recorder.elements).tolist() == list(range(15))
    assert recorder.terminal == ("on_complete",)
    recorder.check()


@pytest.mark.parametrize("late", [False, True])
def test_an_error_overtakes_records_or_not(late: bool) -> None:
    publisher, recorder = recorded(capacity=4, delay_error=late)
    publisher.subscriber.on_next(np.arange(6))
    publisher.subscriber.on_error(problem := Problem())
    recorder.subscription.request(9)
    got = [x for part in recorder.elements for x in part.tolist()]
    assert got == (list(range(6)) if late else [])
    assert recorder.error is problem
    recorder.check()


@pytest.mark.parametrize(
    ("element", "words"),
    [
        ([1.0], "numpy array"),
        (np.zeros(2, "f4"), "dtype"),
        (np.zeros((2, 2)), "shape"),
        (np.ma.masked_equal(np.arange(3.0), 1), "mask would be lost"),
    ],
)
def test_what_is_no_record_ends_the_stream(element: Any, words: str) -> None:
    publisher, recorder = recorded(9, dtype="f8")
    publisher.subscriber.on_next(element)
    assert isinstance(recorder.error, TypeError | ValueError)
    assert words in str(recorder.error)
    assert "publish_records_on" in "".join(recorder.error.__notes__)
    assert publisher.cancels == 1
    recorder.check()


def test_a_drain_that_looks_while_an_array_comes_asks_for_no_other_one() -> None:
    """It would take the place of what is left of the one that came."""
    for step in steps():
        publisher, recorder = recorded(dtype="f8", capacity=2)
        assert publisher.requests == [1]
        with step.meanwhile(lambda r=recorder: r.subscription.request(1)):
            publisher.subscriber.on_next(np.arange(9.0))
        assert publisher.requests == [1], step
        recorder.subscription.request(9)
        assert publisher.requests == [1, 1], step
        publisher.subscriber.on_complete()
        assert np.concatenate(recorder.elements).tolist() == list(range(9)), step
        assert recorder.terminal == ("on_complete",), step


def test_an_array_that_cannot_be_sliced_is_an_error_of_the_stream() -> None:
    class Whole(np.ndarray[Any, Any]):
        def __getitem__(self, _where: Any, /) -> Any:
            raise Problem

    publisher, recorder = recorded(9, capacity=2)
    publisher.subscriber.on_next(np.arange(8).view(Whole))
    assert isinstance(recorder.error, Problem)
    assert publisher.cancels == 1


@pytest.mark.parametrize(("dtype", "raises"), [("O", TypeError), ("V0", ValueError)])
def test_what_no_record_can_be_is_refused(dtype: str, raises: type[Exception]) -> None:
    with pytest.raises(raises, match="dtype"):
        rsf.from_numpy(SAMPLES).publish_records_on(dtype)


def test_spec109_too_much_memory_is_signalled() -> None:
    publisher = ManualPublisher()
    stream = rsf.from_publisher(publisher).publish_records_on("S2147483647", capacity=2**31)
    recorder = subscribed(stream, 1)
    assert isinstance(recorder.error, MemoryError)
    assert publisher.subscribes == 0
    recorder.check()


# -- live figures ---------------------------------------------------------------------------------
async def test_the_figures_of_map_async() -> None:
    release = asyncio.Event()

    async def call(n: int) -> int:
        await release.wait()
        return n + 1

    publisher, recorder = ManualPublisher(), Recorder()
    stream: rsf.Stream[int] = rsf.from_publisher(publisher)
    stream.map_async(call, concurrency=2, prefetch=6).subscribe(recorder)

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - figures tell nobody that they change
                await asyncio.sleep(0)

    def metrics() -> rsf.BoundaryMetrics:
        (mine,) = rsf.metrics_of(recorder.subscription)
        return mine

    assert (metrics().held, metrics().max_held, metrics().demand) == (0, 6, 0)
    recorder.subscription.request(3)
    await until(lambda: publisher.requested == 6)
    await until(lambda: metrics().waited_for_upstream > 0)
    send(publisher, *range(5))
    await until(lambda: metrics().held == 5)
    assert metrics().demand == 3
    assert "at most 2 calls at once and 6 elements in flight" in metrics().name
    release.set()
    await until(lambda: len(recorder.elements) == 3)
    await until(lambda: metrics().waited_for_demand > 0)
    assert (metrics().held, metrics().demand) == (2, 0)
    recorder.subscription.cancel()
    await until(lambda: metrics().held == 0)
    assert metrics().demand == 0
