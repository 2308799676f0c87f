"""``sinks.postgres`` on a real server: each row once, whatever is killed or repeated."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import rstreams_fast.spark as rs
from tests.spark.postgres_server import PostgresServer

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with PostgresServer() as started:
        # Each start of another pytest does this.
        tmp_path_factory.getbasetemp().parent.chmod(0o700)
        yield started


@pytest.fixture
def table(server: PostgresServer, name: str) -> str:
    """A table in a schema of its own, with names that SQL takes only in quotes."""
    server.ask(f'create schema "s{name}"')
    server.ask(
        f'create table "s{name}"."a % {{b}}" (id bigint primary key, "per %" text, '
        "d numeric(9, 2), t timestamptz, day date, b bytea, j jsonb, "
        "made timestamptz not null default now())"
    )
    return f"s{name}.a % {{b}}"


def quoted(table: str) -> str:
    return '"' + table.replace(".", '"."') + '"'


def count(server: PostgresServer, table: str) -> int:
    ((found,),) = server.ask(f"select count(*) from {quoted(table)}")
    return int(found)


def stages(server: PostgresServer, table: str) -> list[Any]:
    """What the sink has left beside the table, but for the ledger."""
    schema = table.partition(".")[0]
    return server.ask(
        f"select tablename from pg_tables where schemaname = '{schema}' "
        "and tablename ~ '^rstreams_.*_'"
    )


def frame(spark: Any, first: int = 0, rows: int = 1000) -> Any:
    return spark.range(first, first + rows, 1, 4).selectExpr(
        "id",
        "case id % 4 when 0 then '' when 1 then null else concat('q\"uo,te\n\\\\', id) end `per %`",
        "cast(id as decimal(9, 2)) / 4 d",
        "timestamp_micros(id * 1001) t",
        "date_add(date'2024-01-01', cast(id % 99 as int)) day",
        "cast(concat('b', id) as binary) b",
        "named_struct('x', id, 'y', array(1, 2)) j",
    )


def test_values_arrive_as_they_are_and_a_write_with_a_name_is_written_once(
    spark: Any, server: PostgresServer, table: str
) -> None:
    sink = rs.sinks.postgres(lambda: server.dsn, table)
    report = rs.write(frame(spark), sink, job="first")
    assert (report.rows, report.calls, report.repeated) == (1000, 4, False)
    assert rs.write(frame(spark), sink, job="first").repeated
    text = 'q"uo,te\n\\2'
    (row,) = server.ask(
        f'select "per %", d::text, extract(epoch from t)::text, day::text, b, j, made is not null '
        f"from {quoted(table)} where id = 2"
    )
    assert row == (text, "0.50", "0.002002", "2024-01-03", b"b2", {"x": 2, "y": [1, 2]}, True)
    texts = server.ask(f'select "per %" from {quoted(table)} where id < 2 order by id')
    assert texts == [("",), (None,)]
    assert stages(server, table) == []
    with pytest.raises(Exception, match="duplicate key value"):
        rs.write(frame(spark), sink, job="second")
    assert (count(server, table), stages(server, table)) == (1000, [])
    newer = rs.sinks.postgres(server.dsn, table, mode="upsert", key="id")
    assert rs.write(frame(spark, 900, 200).selectExpr("id", "'new' `per %`"), newer).rows == 200
    rs.write(frame(spark, 0, 5).select("id"), newer)
    ((news, days),) = server.ask(
        f"select count(*) filter (where \"per %\" = 'new'), count(day) from {quoted(table)}"
    )
    assert (news, days, count(server, table)) == (200, 1000, 1100)


def test_texts_arrive_whatever_the_encoding_of_the_client(
    spark: Any, server: PostgresServer, name: str
) -> None:
    server.ask(f'create table "e{name}" (t text)')
    sink = rs.sinks.postgres(f"{server.dsn} client_encoding=LATIN1", f"e{name}")
    rs.write(spark.createDataFrame([("é ü",)], "t string"), sink, job="ä")
    assert server.ask(f'select t from "e{name}"') == [("é ü",)]


def test_rows_of_one_key_are_one_row_and_rows_with_a_null_key_are_all_added(
    spark: Any, server: PostgresServer, name: str
) -> None:
    server.ask(f'create table "k{name}" (a int, b text, n int, unique (a, b))')
    sink = rs.sinks.postgres(server.dsn, f"k{name}", mode="upsert", key=("a", "b"))
    rows = spark.range(0, 60, 1, 3).selectExpr(
        "cast(id % 2 as int) a", "if(id < 40, 'same', null) b", "cast(id as int) n"
    )
    for job in "first", "second":
        assert rs.write(rows, sink, job=job).rows == 60
    found = server.ask(f'select a, b, count(*) from "k{name}" group by a, b order by a, b')
    assert found == [(0, "same", 1), (0, None, 20), (1, "same", 1), (1, None, 20)]


def test_a_table_without_a_schema_is_found_along_the_search_path(
    spark: Any, server: PostgresServer, name: str
) -> None:
    """And the sink makes its own tables in the schema of the table, not in the first schema."""
    server.ask(f"create schema first{name}")
    server.ask(f"create schema second{name}")
    server.ask(f"create table second{name}.rated (id bigint)")
    path = f"{server.dsn} options='-c search_path=first{name},second{name}'"
    sink = rs.sinks.postgres(path, "rated")
    assert rs.write(spark.range(10), sink, job="once").rows == 10
    assert rs.write(spark.range(10), sink, job="once").repeated
    found = server.ask(
        "select schemaname, tablename from pg_tables "
        f"where schemaname like '%{name}' order by tablename"
    )
    assert found == [(f"second{name}", "rated"), (f"second{name}", "rstreams_ledger")]
    with pytest.raises(Exception, match='relation "missing" does not exist'):
        rs.write(spark.range(10), rs.sinks.postgres(path, "missing"), job="once")


@pytest.mark.parametrize("words", [{}, {"mode": "upsert", "key": "id"}])
def test_a_trigger_of_the_table_may_leave_rows_out(
    spark: Any, server: PostgresServer, name: str, words: Any
) -> None:
    server.ask(f"create table t{name} (id bigint primary key)")
    server.ask(
        f"create function t{name}() returns trigger language plpgsql "
        "as 'begin if new.id < 4 then return null; end if; return new; end'"
    )
    server.ask(
        f"create trigger few before insert on t{name} for each row execute function t{name}()"
    )
    report = rs.write(spark.range(10), rs.sinks.postgres(server.dsn, f"t{name}", **words))
    assert (report.rows, count(server, f"t{name}")) == (10, 6)


def test_a_stream_does_not_make_the_ledger_forget_a_write_of_its_name(
    spark: Any, server: PostgresServer, table: str
) -> None:
    sink = rs.sinks.postgres(server.dsn, table)
    rs.write(frame(spark), sink, job="both")
    rs.writer(sink, job="both")(frame(spark, 1000), 1000)
    assert rs.write(frame(spark), sink, job="both").repeated


def test_values_that_csv_has_no_form_for_arrive(
    spark: Any, server: PostgresServer, name: str
) -> None:
    """Each column's type in PostgreSQL, the value in Spark, and the text of what arrives."""
    values = (
        ("interval", "interval '-1 02:03:04.5' day to second", "-26:03:04.5"),
        ("interval[]", "array(interval '1' second, null)", "{00:00:01,NULL}"),
        ("int[]", "array(1, null, 3)", "{1,NULL,3}"),
        ("int[][]", "array(array(1, 2), array(3, 4))", "{{1,2},{3,4}}"),
        (
            "text[]",
            r"""array('x', 'y"z,\\', '', null, 'NULL')""",
            r'{x,"y\"z,\\","",NULL,"NULL"}',
        ),
        ("bytea[]", "array(x'00ff')", r'{"\\x00ff"}'),
        ("int[]", "cast(array() as array<int>)", "{}"),
        ("int[]", "cast(null as array<int>)", None),
        ("jsonb", "array(1, null)", "[1, null]"),
        ("jsonb[]", "array(struct(1 a))", r'{"{\"a\": 1}"}'),
        ("jsonb", "map('k', struct(1.5 d, x'00ff' b))", '{"k": {"b": "AP8=", "d": "1.5"}}'),
        ("jsonb", "struct(date'0001-01-01' d)", '{"d": "0001-01-01"}'),
        ("jsonb", "map(date'2024-01-01', map(1.5, 2))", '{"2024-01-01": {"1.5": 2}}'),
        ("date", "date'0001-01-01'", "0001-01-01"),
        ("float8", "double('-inf')", "-Infinity"),
        (
            "numeric(38, 18)",
            "cast('1.000000000000000001' as decimal(38, 18))",
            "1.000000000000000001",
        ),
        ("timestamptz", "timestamp'1883-01-01'", "1883-01-01 04:56:02+00"),
        ("timestamp", "timestamp'1883-01-01'", "1883-01-01 00:00:00"),
        ("timestamp", "timestamp_ntz'2020-02-03 04:05:06.123456'", "2020-02-03 04:05:06.123456"),
        ("text", r"'\\N \\. €😀'", r"\N \. €😀"),
    )
    places = range(len(values))
    columns = ", ".join(f"c{place} {values[place][0]}" for place in places)
    server.ask(f"create table t{name} ({columns})")
    rows = ", ".join(f"{values[place][1]} c{place}" for place in places)
    rs.write(spark.sql(f"select {rows}"), rs.sinks.postgres(server.dsn, f"t{name}"))
    texts = ", ".join(f"c{place}::text" for place in places)
    (found,) = server.ask(f"select {texts} from t{name}")
    assert list(found) == [text for _, _, text in values]


def test_times_in_a_zone_that_arrow_lacks_arrive(
    spark: Any, server: PostgresServer, name: str
) -> None:
    server.ask(f"create table t{name} (at timestamptz, local timestamp)")
    option = "spark.sql.session.timeZone"
    before = spark.conf.get(option)
    spark.conf.set(option, "PST")
    try:
        times = "timestamp'2024-01-01 12:00:00'"
        frame = spark.sql(f"select {times} at, {times} local")
        rs.write(frame, rs.sinks.postgres(server.dsn, f"t{name}"))
    finally:
        spark.conf.set(option, before)
    found = server.ask(f"select at::text, local::text from t{name}")
    assert found == [("2024-01-01 20:00:00+00", "2024-01-01 12:00:00")]


def test_batches_of_a_stream_are_written_once_and_the_ledger_does_not_grow(
    spark: Any, server: PostgresServer, table: str
) -> None:
    writer = rs.writer(rs.sinks.postgres(server.dsn, table), job="stream")
    for batch in (1, 1, 2, 2, 300):
        writer(frame(spark, 100 * batch, 100), batch)
    assert count(server, table) == 300
    assert writer.report is not None
    assert not writer.report.repeated
    schema = table.partition(".")[0]
    assert server.ask(f'select batch, rows from "{schema}".rstreams_ledger') == [(300, 100)]


def test_a_stream_with_a_new_checkpoint_needs_another_name(
    spark: Any, server: PostgresServer, table: str
) -> None:
    sink = rs.sinks.postgres(server.dsn, table)
    rs.writer(sink, job="old")(frame(spark, 0, 100), 7)
    with pytest.raises(RuntimeError, match="batch 0 of 'old' comes after batch 7: a stream with a"):
        rs.writer(sink, job="old")(frame(spark, 100, 100), 0)
    rs.writer(sink, job="new")(frame(spark, 100, 100), 0)
    assert (count(server, table), stages(server, table)) == (200, [])


def test_two_tables_of_a_batch_are_two_writes(
    spark: Any, server: PostgresServer, name: str
) -> None:
    for table in ("a", "b"):
        server.ask(f"create table {table}{name} (id bigint)")
    writers = [
        rs.writer(rs.sinks.postgres(server.dsn, f"{table}{name}"), job="s") for table in "ab"
    ]
    for batch in (1, 1):
        for writer in writers:
            writer(spark.range(10), batch)
    counts = f"select (select count(*) from a{name}), (select count(*) from b{name})"
    assert server.ask(counts) == [(10, 10)]


@pytest.mark.parametrize("happens", ["a copy goes on", "the driver is gone", "the server crashes"])
def test_a_write_leaves_no_staging_table_and_loses_no_row(
    spark: Any,
    server: PostgresServer,
    table: str,
    happens: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = rs.sinks.postgres(server.dsn, table, mode="upsert", key="id")
    commit, held = rs.sinks.PostgresSink.commit, []

    def with_a_copy(*words: Any) -> bool:
        (stage,) = stages(server, table)
        db = psycopg.connect(server.dsn)
        held.append(db)
        db.execute(f'lock table "{table.partition(".")[0]}"."{stage[0]}" in row exclusive mode')
        return commit(*words)

    def after_a_crash(*words: Any) -> bool:
        server.crash()
        return commit(*words)

    if happens == "a copy goes on":
        monkeypatch.setattr(rs.sinks.PostgresSink, "commit", with_a_copy)
        assert rs.write(frame(spark), sink, job="held").rows == 1000
        with pytest.raises(psycopg.OperationalError):
            held[0].execute("select 1")
    elif happens == "the driver is gone":
        with monkeypatch.context() as patch:
            patch.setattr(rs.sinks.PostgresSink, "finish", lambda *_: None)
            rs.write(frame(spark), sink, job="gone")
        assert len(stages(server, table)) == 1
        assert rs.write(frame(spark), sink, job="gone").repeated
    else:
        monkeypatch.setattr(rs.sinks.PostgresSink, "commit", after_a_crash)
        with pytest.raises(RuntimeError, match="0 of 1000 rows are in the staging table"):
            rs.write(frame(spark), sink, job="crash")
        monkeypatch.undo()
        assert rs.write(frame(spark), sink, job="crash").rows == 1000
    assert (count(server, table), stages(server, table)) == (1000, [])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_spark_connect(server: PostgresServer, name: str, tmp_path: Path, run_script: Any) -> None:
    """Functions, tables and batches of a stream as sinks, with the frames of a Connect server."""
    server.ask(f"create table c{name} (id bigint, text text)")
    script = f"""
import rstreams_fast.spark as rs
from tests.spark.conftest import bring_connect_server, session

bring_connect_server()
spark = session("local[2]", remote=True)

def made():
    async def odd_fail(rows):
        return [OSError("odd") if row["id"] % 2 else None for row in rows]
    return odd_fail

frame = spark.range(0, 100, 1, 2).selectExpr("id", "concat('row ', id) text")
assert "connect" in type(frame).__module__
letters = rs.dead_letters({str(tmp_path / "dead")!r})
report = rs.write(frame, made(), on_failure=letters)
assert (report.rows, report.dead) == (50, 50), report
assert spark.read.parquet(letters.uri).count() == 50
sink = rs.sinks.postgres({server.dsn!r}, "c{name}")
print([rs.write(frame, sink, job="connect").repeated for _ in range(2)])
frame.write.json({str(tmp_path / "source")!r})
stream = spark.readStream.schema("id long, text string").json({str(tmp_path / "source")!r})

def run(writer, checkpoint):
    query = stream.writeStream.foreachBatch(writer).trigger(availableNow=True)
    place = {str(tmp_path)!r} + checkpoint
    query = query.option("checkpointLocation", place)
    while True:
        try:
            return query.start().awaitTermination()
        except Exception as error:  # a busy machine takes more than Spark's 10 s to start a process
            if "Python worker failed to connect back" not in str(error):
                raise

run(rs.writer(sink, job="stream"), "/a")
run(rs.writer(sink, job="stream"), "/b")  # the same batch of the same job
try:
    run(rs.writer(sink), "/c")
except Exception as error:
    assert "give it a name (job=)" in str(error), error
"""
    assert run_script(script, 500).split() == ["[False,", "True]"]
    assert server.ask(f"select count(*), count(distinct id) from c{name}") == [(200, 100)]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_killed_workers_and_a_driver_that_is_gone_leave_no_row(
    spark: Any, server: PostgresServer, table: str, tmp_path: Path, run_script: Any
) -> None:
    """Workers are killed while they copy; then the driver, before it commits and after that."""
    script = f"""
import os, signal
from pathlib import Path
import psutil
import rstreams_fast.spark as rs
from tests.spark.conftest import session

mark = Path({str(tmp_path)!r})
spark = session("local[2,100]", {{"spark.sql.execution.arrow.maxRecordsPerBatch": "50"}})

def dying(batches):
    from pyspark import TaskContext
    part = TaskContext.get().partitionId()
    for number, batch in enumerate(batches):
        yield batch
        once = mark / f"{{part}}-{{number}}"
        if number == part and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)

def die(*words):
    for process in psutil.Process().children(recursive=True):
        process.kill()
    os.kill(os.getpid(), signal.SIGKILL)

frame = spark.range(0, 1000, 1, 4).mapInArrow(dying, "id long")
sink = rs.sinks.postgres({server.dsn!r}, {table!r})
when = mark / "driver"
if not when.exists():
    when.touch()
    type(sink).commit = die
elif when.stat().st_size == 0:
    when.write_text("again")
    commit = type(sink).commit
    def late(*words):
        assert commit(*words)
        die()
    type(sink).commit = late
report = rs.write(frame, sink, job="killed")
print(report.rows, report.repeated)
"""
    for _ in range(2):
        with pytest.raises(AssertionError):
            run_script(script, 200)
    assert run_script(script, 200).split() == ["0", "True"]
    assert (count(server, table), stages(server, table)) == (1000, [])
    assert len(list(tmp_path.glob("*-*"))) == 4
    rs.write(frame(spark, 5000, 10), rs.sinks.postgres(server.dsn, table), job="killed")
    assert count(server, table) == 1000


@pytest.mark.parametrize(
    ("dsn", "words", "error", "message"),
    [
        ("postgresql://me:pw@host/db", {}, ValueError, "dsn holds a key or a password"),
        ("host=h password\t= pw", {}, ValueError, "dsn holds a password"),
        ("postgresql://h/db?pass%77ord=pw", {}, ValueError, "dsn holds a key or a password"),
        (3, {}, TypeError, "dsn must be a str or a function"),
        ("", {"table": ""}, TypeError, "table must be the name"),
        ("", {"mode": "replace"}, ValueError, "mode must be"),
        ("", {"mode": "upsert"}, ValueError, "key: mode='upsert' needs"),
        ("", {"key": "id"}, ValueError, "key: mode='upsert' needs"),
    ],
)
def test_words_of_postgres_are_checked(
    dsn: Any, words: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        rs.sinks.postgres(dsn, **{"table": "t", **words})
    with pytest.raises(ValueError, match=r"batch does not suit sinks\.postgres"):
        rs.writer(rs.sinks.postgres("", "t"), batch=3)


@pytest.mark.parametrize(
    "dsn",
    [
        "host=127.0.0.1 port=1 password=my sesame",
        "host=127.0.0.1 port=1 password='my's sesame'",
        "postgresql://me:my@sesame@127.0.0.1:1/db",
        "postgresql://me:my%sesame@127.0.0.1:1/db",
    ],
)
def test_no_error_shows_a_part_of_a_password(spark: Any, dsn: str) -> None:
    with pytest.raises(ValueError, match="dsn is no connection string of libpq: a pas") as failed:
        rs.write(spark.range(1), rs.sinks.postgres(lambda: dsn, "t"))
    assert "sesame" not in "".join(traceback.format_exception(failed.value))
