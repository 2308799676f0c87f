"""``sinks.postgres``: tasks copy rows to a staging table; the driver then commits them once."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import io
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import unquote

from rstreams_fast._checks import check_choice
from rstreams_fast._third_parties import importing
from rstreams_fast.calls.journal.uris import check_no_keys
from rstreams_fast.spark.frames import MapFunction
from rstreams_fast.spark.options import column_names
from rstreams_fast.spark.sinks.json_values import json_text
from rstreams_fast.spark.sinks.sink import Frame, Sink, SinkOptions
from rstreams_fast.spark.sinks.subscribers import SubscriberSink
from rstreams_fast.spark.worker.counters import task_context
from rstreams_fast.spark.worker.values.python_values import python_values

if TYPE_CHECKING:
    import pyarrow as pa

    from rstreams_fast.api import Subscription

__all__ = ["PostgresSink", "postgres"]

PART: Final = "rstreams_part"
"""A column of the staging table: the id of the task attempt that copied the row."""

LEDGER: Final = "rstreams_ledger"
"""The name of the table that records which writes are committed."""

KEPT_BATCHES: Final = 100
"""The ledger keeps this many batches of a query. Spark repeats only the latest batch."""

DROP_SECONDS: Final = 5
"""The maximum number of seconds that the driver waits for the lock to drop a staging table."""


def postgres(
    dsn: str | Callable[[], str],
    table: str,
    *,
    mode: Literal["append", "upsert"] = "append",
    key: str | Sequence[str] = (),
) -> PostgresSink:
    """Write rows to a table of PostgreSQL, each row exactly once.

    This sink needs psycopg. A task copies its rows into a staging table, in one transaction. After
    all tasks have ended, the driver moves the rows of the successful attempts into ``table``, and
    adds the job to a ledger, in one transaction. So killed tasks and speculative copies leave no
    rows, and readers see all rows of a write or none.

    A write with a name (``job=``), and a batch of a stream, is written once, even if it runs again:
    a later run finds the write in the ledger, and ``repeated`` is true in its report. The driver
    and the executors must reach the server. The sink makes the ledger, a table ``rstreams_ledger``
    in the schema of ``table``. While a write runs, there is also a staging table ``rstreams_...``.

    ```python
    import rstreams_fast.spark as rs

    sink = rs.sinks.postgres("host=db.example.org dbname=flights", "rated", mode="upsert", key="id")
    ```

    Args:
        dsn: A connection string of libpq without a password; the password is in the environment
            (``PGPASSWORD``) or in a file. Or a function that returns the connection string, which
            may contain a password; the driver and the workers call the function.
        table: The name of an existing table, with or without its schema. Without the schema, the
            table is found along the ``search_path``. Columns are matched by name; columns that the
            frame lacks get their defaults. An array of the frame is written as an array or as JSON,
            depending on the column's type; structs and maps are written as JSON.
        mode: With ``"append"`` rows are added. With ``"upsert"`` a row replaces the row with the
            same ``key``; if several rows of the frame have the same key, any one of them is
            written.
        key: The columns of a unique index of the table, for ``"upsert"``.

    Returns:
        The sink.

    Raises:
        TypeError: An argument has the wrong type; the message names the argument.
        ValueError: An argument has a wrong value; the message names the argument.
    """
    if isinstance(dsn, str):
        check_no_keys("dsn", dsn)
        if re.search(r"password\s*=", unquote(dsn)):
            raise ValueError("dsn holds a password: give it by PGPASSWORD, or give a function")
    elif not callable(dsn):
        raise TypeError(f"dsn must be a str or a function, got {type(dsn).__name__}")
    if not isinstance(table, str) or not table:
        raise TypeError(f"table must be the name of a table, got {table!r}")
    check_choice("mode", mode, ("append", "upsert"))
    keys = column_names("key", key)
    if (mode == "upsert") != bool(keys):
        raise ValueError(
            "key: mode='upsert' needs the columns of a unique index, and no other does"
        )
    return PostgresSink(dsn, table, keys)


@dataclass(frozen=True, repr=False)
class PostgresSink(Sink):
    """A sink that writes to a table of PostgreSQL, made by ``postgres``. Immutable.

    Args:
        dsn: As in ``postgres``.
        table: The name of the table.
        key: The key columns of ``mode="upsert"``; empty for ``mode="append"``.
    """

    dsn: str | Callable[[], str]
    table: str
    key: tuple[str, ...]
    _options: SinkOptions = field(default_factory=SinkOptions)

    def with_options(self, options: SinkOptions) -> PostgresSink:
        options.refuse("sinks.postgres", "key", "using", "concurrency", "batch", "dead_letters")
        return PostgresSink(self.dsn, self.table, self.key, options)

    def drain(self, frame: Frame) -> MapFunction:
        if unknown := sorted(set(self.key) - set(frame.names)):
            raise ValueError(f"key: the frame has no column {', '.join(unknown)}")
        stage = self._staging_table(frame)
        make_subscriber = partial(_CopySubscriber, self.dsn, self.table, stage, frame.names)
        return SubscriberSink(make_subscriber, self._options).drain(frame)

    def begin(self, frame: Frame) -> bool:
        with _connect(self.dsn) as db:
            is_new = not frame.job or self._is_new(db, frame)
            if is_new:
                self._execute(
                    db,
                    "create unlogged table {stage} as "
                    "select {columns}, 0::bigint as {part} from {table} with no data",
                    frame,
                )
            if frame.job:
                self._drop_tables(db, frame, self._old_staging_tables(db, frame))
        return is_new

    def _is_new(self, db: Any, frame: Frame) -> bool:
        """Return whether the ledger, the table of committed writes, lacks this write.

        The ledger is made if it does not exist.
        """
        # Take a lock, so that two runs of a write begin one after the other. Then the second run
        # finds and drops the staging table of the first run, and only one of them makes the ledger.
        self._execute(db, "select pg_advisory_xact_lock(hashtext({name}))", frame, name=LEDGER)
        self._execute(
            db,
            "create table if not exists {ledger} (job text, batch bigint, target text, "
            "rows bigint, at timestamptz default now(), primary key (job, batch, target))",
            frame,
        )
        found = self._execute(
            db,
            "select coalesce(bool_or(batch = {batch}), false), coalesce(max(batch), -1) "
            "from {ledger} where (job, target) = ({job}, {target})",
            frame,
        )
        is_old, newest = found.fetchone()
        if frame.batch is not None and frame.batch < newest:
            raise RuntimeError(
                f"batch {frame.batch} of {frame.job!r} comes after batch {newest}: a stream with a "
                "new checkpoint counts its batches from 0 again and needs another name (job=)"
            )
        return not is_old

    def commit(self, frame: Frame, tokens: list[str], rows: int) -> bool:
        with _connect(self.dsn) as db:
            if frame.job:
                inserted = self._execute(
                    db,
                    "insert into {ledger} values ({job}, {batch}, {target}, {rows}) "
                    "on conflict do nothing",
                    frame,
                    rows=rows,
                )
                if not inserted.rowcount:
                    return False
                self._execute(
                    db,
                    "delete from {ledger} "
                    "where (job, target) = ({job}, {target}) and batch between 0 and {oldest}",
                    frame,
                    oldest=_batch_number(frame) - KEPT_BATCHES - 1,
                )
            staged = {"tokens": [int(token) for token in tokens if token]}
            moved = self._execute(db, self._move_statement(frame), frame, **staged).rowcount
            # Fewer rows may arrive in the table than were staged, because of equal keys or
            # triggers. So count the rows in the staging table.
            if self.key or moved != rows:
                counting = "select count(*) from {stage} where {part} = any({tokens}::bigint[])"
                (moved,) = self._execute(db, counting, frame, **staged).fetchone()
            if moved != rows:  # a crash of the server empties unlogged tables
                raise RuntimeError(f"{moved} of {rows} rows are in the staging table")
        return True

    def finish(self, frame: Frame) -> None:
        import psycopg

        stage = self._staging_table(frame)
        try:
            with _connect(self.dsn) as db:
                self._drop_tables(db, frame, [stage])
        except psycopg.Error as refused:
            _warn_left_table(stage, refused)

    def _move_statement(self, frame: Frame) -> str:
        if not self.key:
            return (
                "insert into {table} ({columns}) "
                "select {columns} from {stage} where {part} = any({tokens}::bigint[])"
            )
        others = len(frame.names) > len(self.key)
        # A unique index treats keys with a null as different. So ``distinct on`` must not merge
        # their rows: for these rows it also compares the ctid, which differs.
        return (
            "insert into {table} ({columns}) select distinct on "
            "({key}, case when row({key}) is not null then null else ctid end) {columns} "
            "from {stage} where {part} = any({tokens}::bigint[]) on conflict ({key}) do "
            + ("update set ({others}) = row({replaced})" if others else "nothing")
        )

    def _old_staging_tables(self, db: Any, frame: Frame) -> list[str]:
        """Return the names of the staging tables that earlier runs of this write have left."""
        own = self._staging_table(frame)
        found = self._execute(
            db,
            "select relname from pg_class where relkind = 'r' "
            "and starts_with(relname, {prefix}) and relname <> {own}",
            frame,
            prefix=f"{own.rpartition('_')[0]}_",
            own=own,
        )
        return [name for (name,) in found.fetchall()]

    def _drop_tables(self, db: Any, frame: Frame, stages: list[str]) -> None:
        """Drop staging tables. Before that, end the database sessions that still write to them."""
        import psycopg
        from psycopg import sql

        schema = _schema_of(db, self.table)
        self._execute(db, "set local lock_timeout = {most}", frame, most=f"{DROP_SECONDS}s")
        for stage in stages:
            old = sql.Identifier(*schema, stage)
            try:
                with db.transaction():
                    self._execute(
                        db,
                        "select pg_terminate_backend(pid) "
                        "from pg_locks join pg_stat_activity using (pid) "
                        "where relation = to_regclass({name}) and usename = current_user "
                        "and datname = current_database() and pid <> pg_backend_pid()",
                        frame,
                        name=old.as_string(db),
                    )
                    self._execute(db, "drop table if exists {old}", frame, old=old)
            except psycopg.Error as refused:
                _warn_left_table(stage, refused)

    def _execute(self, db: Any, text: str, frame: Frame, **more: Any) -> Any:
        """Execute the SQL ``text``, with identifiers and literals for its fields in braces."""
        from psycopg import sql

        schema = _schema_of(db, self.table)
        others = [name for name in frame.names if name not in self.key]
        values = {"job": frame.job, "batch": _batch_number(frame), "target": self.table, **more}
        parts = {
            "columns": _identifiers(frame.names),
            "key": _identifiers(self.key),
            "others": _identifiers(others),
            "replaced": sql.SQL(", ").join(sql.Identifier("excluded", name) for name in others),
            "part": sql.Identifier(PART),
            "ledger": sql.Identifier(*schema, LEDGER),
            "stage": sql.Identifier(*schema, self._staging_table(frame)),
            "table": sql.Identifier(*self.table.split(".")),
            **{
                name: value if isinstance(value, sql.Composable) else sql.Literal(value)
                for name, value in values.items()
            },
        }
        statement: Any = text
        return db.execute(sql.SQL(statement).format(**parts))

    def _staging_table(self, frame: Frame) -> str:
        """Return the name of the staging table of this run of the write.

        All runs of a write use the same prefix. By this prefix a later run finds the tables that
        earlier runs have not dropped.
        """
        text = ascii((frame.job, _batch_number(frame), self.table))
        write = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return f"rstreams_{write}_{frame.run_id[:16]}"

    def __repr__(self) -> str:
        return f"postgres({self.table!r})"


def _schema_of(db: Any, table: str) -> list[str]:
    """Return the schema of ``table``, as the parts of a name before the table's own.

    If ``table`` has no schema, PostgreSQL finds it along the search path. But PostgreSQL would make
    a new table without a schema in the first schema of this path.
    """
    from psycopg import sql

    schema = table.split(".")[:-1]
    if schema:
        return schema
    found = db.execute(
        "select nspname from pg_class join pg_namespace on pg_namespace.oid = relnamespace "
        "where pg_class.oid = to_regclass(%s)",
        [sql.Identifier(table).as_string(db)],
    )
    return [of_table for (of_table,) in found]


def _batch_number(frame: Frame) -> int:
    return -1 if frame.batch is None else frame.batch


def _warn_left_table(stage: str, refused: Exception) -> None:
    logging.getLogger("rstreams_fast").warning(
        "sinks.postgres: the staging table %s is left (%s)", stage, refused
    )


def _identifiers(columns: Sequence[str]) -> Any:
    from psycopg import sql

    return sql.SQL(", ").join(map(sql.Identifier, columns))


def _connect(dsn: str | Callable[[], str]) -> Any:
    """Return a database connection. Its ``with`` block commits at the end."""
    with importing("psycopg", "sinks.postgres", "'rstreams_fast[postgres]'"):
        import psycopg
    text = dsn() if callable(dsn) else dsn
    if not isinstance(text, str):
        raise TypeError(f"dsn must return a str, got {type(text).__name__}")
    if not _is_valid_dsn(text):
        # Check first: the error of libpq would show parts of the string, such as the end of a
        # password.
        raise ValueError(
            "dsn is no connection string of libpq: a password with spaces or quotes must be quoted "
            "(psycopg.conninfo.make_conninfo does it), and one in a URI percent-encoded"
        )
    return psycopg.connect(text)


def _is_valid_dsn(text: str) -> bool:
    """Whether libpq can parse the string, and takes no part of a password for the host."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        host = conninfo_to_dict(text).get("host")
    except psycopg.Error:
        return False
    return "@" not in str(host)[1:]  # a leading @ means an abstract socket


class _CopySubscriber:
    """A subscriber that copies a partition's batches into the staging table, in one transaction."""

    def __init__(
        self, dsn: str | Callable[[], str], table: str, stage: str, names: tuple[str, ...]
    ) -> None:
        """``stage`` is the name of the staging table, in the schema of ``table``."""
        context = task_context()
        self.token = "0" if context is None else str(context.taskAttemptId())
        self._table = table
        self._stage = stage
        self._columns = (*names, PART)
        self._dsn = dsn
        self._db: Any = None
        self._copy_context: Any = None
        self._copy: Any = None

    def on_subscribe(self, subscription: Subscription, /) -> None:
        self._subscription = subscription
        self._db = _connect(self._dsn)
        from psycopg import sql

        stage = sql.Identifier(*_schema_of(self._db, self._table), self._stage)
        found = self._db.execute(
            "select attname from pg_attribute join pg_type on pg_type.oid = atttypid "
            "where attrelid = to_regclass(%s) and typcategory = 'A'",
            [stage.as_string(self._db)],
        )
        self._arrays = {name for (name,) in found}
        statement = sql.SQL("copy {stage} ({columns}) from stdin (format csv, encoding 'UTF8')")
        parts = {"stage": stage, "columns": _identifiers(self._columns)}
        self._copy_context = self._db.cursor().copy(statement.format(**parts))
        self._copy = self._copy_context.__enter__()
        subscription.request(1)

    def on_next(self, batch: pa.RecordBatch, /) -> None:
        self._copy.write(_csv_of(batch, int(self.token), self._arrays))
        self._subscription.request(1)

    def on_error(self, error: BaseException, /) -> None:  # noqa: ARG002
        self._db.close()

    def on_complete(self) -> None:
        self._copy_context.__exit__(None, None, None)
        self._db.commit()
        self._db.close()


def _csv_of(batch: pa.RecordBatch, token: int, arrays: set[str]) -> bytes:
    """Return the rows as CSV for PostgreSQL: an empty field is null, and ``""`` is an empty text.

    ``token`` is the id of the task attempt. ``arrays`` names the columns that are arrays in
    PostgreSQL.
    """
    import pyarrow as pa
    from pyarrow import csv

    names = batch.schema.names
    columns = [
        _csv_column(column, _array_text if name in arrays else json_text)
        for name, column in zip(names, batch.columns, strict=True)
    ]
    columns.append(pa.repeat(pa.scalar(token, pa.int64()), batch.num_rows))
    table = pa.Table.from_arrays(columns, names=[*names, PART])
    out = io.BytesIO()
    csv.write_csv(table, out, csv.WriteOptions(include_header=False))
    return out.getvalue()


def _csv_column(column: pa.Array, nested: Callable[[Any], str]) -> pa.Array:
    """Return ``column``, converted to texts if PostgreSQL cannot read pyarrow's CSV of its type.

    ``nested`` converts a list, a struct or a map to a text.
    """
    import pyarrow as pa

    kind = column.type
    is_nested = pa.types.is_nested(kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        with contextlib.suppress(pa.ArrowInvalid):  # Arrow does not know all time zones of Spark
            return _times_with_offsets(column)
    elif not (
        is_nested
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_duration(kind)  # PostgreSQL would read the number as seconds
    ):
        return column
    text = nested if is_nested else _text_of
    values = [None if one is None else text(one) for one in python_values(column)]
    return pa.array(values, pa.string())


def _times_with_offsets(column: pa.Array) -> pa.Array:
    """Return times with a zone as texts, such as ``1883-01-01 00:00:00-04:56:02``.

    Offsets before the introduction of standard time have seconds, which pyarrow would drop. pyarrow
    would also take ten times as long. Raises ``ArrowInvalid`` if Arrow does not know the zone.
    """
    import pyarrow as pa
    from pyarrow import compute

    local = compute.local_timestamp(column)
    numbers = compute.subtract(local.cast(pa.int64()), column.cast(pa.int64()))
    offsets = compute.dictionary_encode(numbers)
    per_second = _UNITS_PER_SECOND[column.type.unit]
    texts = [_offset_text(number // per_second) for number in offsets.dictionary.to_pylist()]
    suffixes = pa.array(texts, pa.string()).take(offsets.indices)
    return compute.binary_join_element_wise(local.cast(pa.string()), suffixes, "")


_UNITS_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def _offset_text(seconds: int) -> str:
    hours, rest = divmod(abs(seconds), 3600)
    return f"{'-' if seconds < 0 else '+'}{hours:02}:{rest // 60:02}:{rest % 60:02}"


def _text_of(value: Any) -> str:
    """Return a value as a text that PostgreSQL can read."""
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, dt.timedelta):
        return f"{value // dt.timedelta(microseconds=1)} microseconds"
    return json_text(value) if isinstance(value, dict) else str(value)


def _array_text(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return f"{{{','.join(map(_array_text, value))}}}"
    text = _text_of(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
