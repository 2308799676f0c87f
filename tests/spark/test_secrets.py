"""A secret that a user planted is in no error, log, text of a stage, plan or file of metrics."""

from __future__ import annotations

import functools
import logging
import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from tests.spark.stages import doubled, made, values

PLANT = f"wJalr{7}XUtn"
"""What no text may show; the lines of this file, which tracebacks have, do not show it either."""

KEYED = [
    "s3://AKIA:{}@bucket/path",
    "s3a://AKIA:{}@bucket/path with space",
    "s3://{}:@bucket/path",
    "s3:/AKIA:{}@bucket/path",
    "s3://AKIA:{}@bucket/path?endpoint_override=127.0.0.1:9&scheme=http",
    "s3://bucket/path?endpoint_override=http://AKIA:{}@127.0.0.1:9",
    "s3://bucket/path?region=x&secret_key={}",
    "s3://bucket/path?apikey={}",
    "https://host/path?code={}",
    "https://host/path?X-Amz-Signature={}",
    "https://host/path?pass%77ord={}",
    "gs://me:{}@bucket/path",
    "abfs://:{}@account.blob.core.windows.net/container",
    "abfss://container@account.dfs.core.windows.net/path?client_secret={}",
    "abfss://container@account.dfs.core.windows.net/path?sv=2024-11-04&sig={}",
    "hdfs://me:{}@127.0.0.1:9/path",
    "file://me:{}@host/path",
    "x-foo://me:{}@host/path",
]
"""Texts that no journal takes."""

SHOWN_NOWHERE = [
    "AKIA:{}@bucket/path",
    "s3://{}@bucket/path",
    "gs://{}@bucket/path",
    "x-foo://{}@host/path",
]


def told(error: BaseException) -> str:
    """Return all that an error tells: of its causes and contexts too, suppressed ones included."""
    found, left = list[str](), [error]
    while left:
        one = left.pop()
        found += [repr(one), *getattr(one, "__notes__", []), *traceback.format_exception(one)]
        left += [other for other in (one.__cause__, one.__context__) if other is not None]
    return "\n".join(found)


def shown(stage: Any) -> list[str]:
    """Return what a stage, and its error if it fails, show."""
    found = [repr(stage), stage.describe()]
    try:
        values(stage, [1, 2])
    except Exception as error:
        found.append(told(error))
    return found


def planted(kind: random.Random) -> str:
    """Return a secret with characters around it that parsers take for ends of something."""
    around = ["".join(kind.choices("/+=:?#%& \n\\'\"[]ab1", k=kind.randrange(6))) for _ in range(2)]
    return around[0] + PLANT + around[1]


@pytest.mark.parametrize("form", KEYED + SHOWN_NOWHERE)
def test_a_uri_with_a_key_is_refused_and_not_shown(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kind = random.Random(form)
    for secret in [PLANT, f"a/{PLANT}", f"{PLANT}\n", *(planted(kind) for _ in range(100))]:
        found = []
        try:
            journal = rs.Journal(form.format(secret), version="1")
        except ValueError as refused:
            found.append(told(refused))
        else:  # it may be a user's name, or a path
            stage = rs.lookup(rs.Policy(journal=journal)(doubled), pa.int64())
            found += [repr(journal), stage.describe()]
            if form.startswith("x-foo"):  # others would look for a host
                found += shown(stage)
                assert "ValueError" in found[-1]
        assert form in SHOWN_NOWHERE or "AWS_SECRET_ACCESS_KEY" in found[0]
        if ":/" in form:  # the others are paths
            with pytest.raises(ValueError, match="not a URI") as no_path:
                rs.Metrics(form.format(secret))
            found.append(told(no_path.value))
        assert PLANT not in "\n".join(found)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/a:b@c",
        "s3://bucket/path?endpoint_override=127.0.0.1:9&scheme=http&region=eu-central-1",
        "gs://anonymous@bucket/path",
        "abfss://container@account.dfs.core.windows.net/path",
        "abfs://container@127.0.0.1:10000/path?enable_tls=false",
        "hdfs://someone@host:8020/path",
        "/data/a:b@c?secret=d",
    ],
)
def test_a_uri_without_a_key_is_taken(uri: str) -> None:
    assert rs.Journal(uri, version="1").uri == uri


class Client:
    """A context manager that holds a secret; its own ``repr`` is its user's matter."""

    def __init__(self, secret: str, fails: str = "") -> None:
        self.secret, self.fails = secret, fails

    def __enter__(self) -> str:
        if self.fails == "entered":
            raise OSError("no connection")
        return self.secret

    def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> str:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        if self.fails == "left":
            raise OSError("not closed")


def no_manager(secret: str) -> object:
    return object()


async def answers(client: str, k: int) -> int:
    return k


async def of_headers(client: str, k: int, headers: dict[str, str] | None = None) -> Any:
    raise OSError("down")


async def of_another_type(client: str, k: int) -> Any:
    return [k]


USING: list[Callable[..., Any]] = [
    *(functools.partial(Client, fails=fails) for fails in ("", "entered", "left")),
    no_manager,
]
FUNCTIONS: list[Callable[..., Any]] = [
    answers,
    of_another_type,
    functools.partial(of_headers, headers={"Authorization": PLANT}),
]


def stages(journal: rs.Journal, metrics: rs.Metrics) -> Iterator[Any]:
    """Return a stage for each way to hand a secret to it, and each word that looks at calls."""
    sets: list[dict[str, Any]] = [
        {},
        {"retry": rs.Retry(1, backoff=0), "timeout": 1.0, "deadline": 2.0},
        {"circuit": rs.Circuit(1, reset=60), "concurrency": 1},
        {"on_failure": rs.Failures("column", at_most=0)},
        {"batch": 2, "cache": rs.Cache()},
        {"bounds": rs.Bounds(seconds=5.0), "limit": rs.Limit("secrets", concurrency=2)},
    ]
    for factory in USING:
        bound = functools.partial(factory, PLANT)
        for using in (bound, rs.PerWorker(bound)):
            for fn in FUNCTIONS:
                for some in sets:
                    words = {"using": using, "metrics": metrics, "journal": journal, **some}
                    yield made(rs.lookup, fn, pa.int64(), **words)
    schema = pa.schema([("k", pa.int64())])
    for fn in FUNCTIONS:
        yield rs.map_batches(fn, schema, using=functools.partial(Client, PLANT), metrics=metrics)


def test_nothing_that_a_stage_tells_shows_what_its_factories_hold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    metrics, ended = rs.Metrics(tmp_path / "metrics"), Counter[int]()
    journal = rs.Journal(tmp_path / "journal", version="1")  # type: ignore[arg-type]
    for stage in stages(journal, metrics):
        found = shown(stage)
        ended[len(found)] += 1
        assert PLANT not in "\n".join(found)
    assert min(ended[2], ended[3]) > 5  # both ends were seen
    assert metrics.read()
    for file in tmp_path.rglob("*"):
        assert PLANT.encode() not in (file.read_bytes() if file.is_file() else b""), file
    assert PLANT not in caplog.text
    assert PLANT not in "".join(capfd.readouterr())


@pytest.mark.spark
def test_a_plan_and_the_error_of_a_job_show_no_secret(spark: Any, tmp_path: Path) -> None:
    journal = rs.Journal(str(tmp_path), version="1")
    using = functools.partial(Client, PLANT)
    for fn in FUNCTIONS[1:]:
        look = rs.lookup(rs.Policy(journal=journal)(fn), "long", using=using)
        frame = spark.range(2).select(look("id"))
        plan = frame._jdf.queryExecution().toString()
        with pytest.raises(Exception) as failed:
            frame.collect()
        assert PLANT not in plan + told(failed.value)
