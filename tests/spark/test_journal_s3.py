"""A journal in an object store: pyarrow's S3 client, and a server of S3's protocol on loopback."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

import rstreams_fast.spark as rs
from rstreams_fast.spark.segments import BATCH_ROWS, Folder, folders_of
from tests.spark.conftest import S3_KEYS
from tests.spark.journals import stage_of, values


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


@pytest.fixture
def uri(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place in a bucket of its own."""
    for name, value in S3_KEYS.items():
        monkeypatch.setenv(name, value)
    bucket = tmp_path.name.replace("_", "-")
    where = f"endpoint_override={server}&scheme=http&region=eu-central-1"
    uri = f"s3://{bucket}/answers/of%20all?{where}"
    files, _ = fs.FileSystem.from_uri(f"{uri}&allow_bucket_creation=true")
    files.create_dir(bucket)
    return uri


def segments(uri: str) -> int:
    return sum(len(folder.sizes()) for folder in folders_of(uri))


def test_answers_are_found_again_merged_and_bounded(uri: str) -> None:
    calls: list[int] = []

    async def fetch(k: int) -> int:
        calls.append(k)
        return 2 * k

    stage = stage_of(fetch, uri)
    for most in (1000, 1500, 2500):
        assert values(stage, range(most)) == [2 * k for k in range(most)]
    assert values(stage, range(2000, 2500), range(2000)) == [
        2 * k for k in (*range(2000, 2500), *range(2000))
    ]
    assert sorted(calls) == list(range(2500))
    assert segments(uri) == 3
    assert rs.Journal(uri, version="1").compact() == 2
    assert segments(uri) == 1
    values(stage, range(2500))
    assert len(calls) == 2500
    rs.Journal(uri, version="1", max_bytes=1).compact()  # less than any segment has
    assert segments(uri) == 0
    values(stage, range(10))
    assert len(calls) == 2510


def test_writers_and_compactors_do_not_mind_each_other(uri: str) -> None:
    async def fetch(k: int) -> int:
        await asyncio.sleep(0)
        return 2 * k

    async def compacting(done: asyncio.Event) -> None:
        while not done.is_set():
            await asyncio.to_thread(rs.Journal(uri, version="1").compact)

    async def main() -> None:
        done = asyncio.Event()
        compactor = asyncio.create_task(compacting(done))
        for start in range(0, 500, 50):
            keys = range(start, start + 50)
            found = await asyncio.to_thread(values, stage_of(fetch, uri), keys)
            assert found == [2 * k for k in keys]
        done.set()
        await compactor

    asyncio.run(main())
    calls: list[int] = []

    async def refuses(k: int) -> int:
        calls.append(k)
        return k

    refuses.__qualname__ = fetch.__qualname__  # an answer goes by the function's name
    assert values(stage_of(refuses, uri), range(500)) == [2 * k for k in range(500)]
    assert calls == []


@pytest.mark.parametrize("batches", [1, 3])
def test_a_segment_that_is_merged_while_it_is_read_is_read_where_it_is_now(
    uri: str, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    async def fetch(k: int) -> int:
        calls.append(k)
        return 2 * k

    keys = range(batches * BATCH_ROWS)
    values(stage_of(fetch, uri), keys[::2])
    values(stage_of(fetch, uri), keys[1::2])
    opened = Folder.open
    with monkeypatch.context() as patch:

        def merged_meanwhile(folder: Folder, name: str, checked: bool = False) -> Any:
            reader = opened(folder, name, checked)
            patch.undo()
            assert rs.Journal(uri, version="1").compact() == 1
            return reader

        patch.setattr(Folder, "open", merged_meanwhile)
        found = values(stage_of(fetch, uri), keys)
    assert found == [2 * k for k in keys]
    assert sorted(calls) == list(keys)


def test_a_store_that_refuses_fails_the_task_and_shows_no_secret(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in S3_KEYS.items():
        monkeypatch.setenv(name, value)

    async def fetch(k: int) -> int:
        return k

    where = f"endpoint_override={server}&scheme=http&region=eu-central-1"
    stage = stage_of(fetch, f"s3://no-such-bucket/answers?{where}")
    begin = time.monotonic()
    with pytest.raises(OSError, match="no-such-bucket") as refused:
        values(stage, range(3))
    assert time.monotonic() - begin < 60
    assert S3_KEYS["AWS_SECRET_ACCESS_KEY"] not in "".join(
        [str(refused.value), *refused.value.__notes__]
    )


@pytest.mark.slow
@pytest.mark.spark
def test_a_job_that_is_started_again_pays_for_the_rest(
    spark: Any, uri: str, tmp_path: Path
) -> None:
    log, up = tmp_path / "calls", tmp_path / "up"
    paths = str(log), str(up)

    async def fetch(k: int) -> int:
        if k == 700 and not Path(paths[1]).exists():  # noqa: ASYNC240
            raise OSError("down")
        with open(paths[0], "a") as file:  # noqa: ASYNC230, PTH123
            file.write(f"{k}\n")
        return 2 * k

    def run(partitions: int) -> list[int]:
        frame = spark.range(0, 1000, 1, partitions)
        look = rs.lookup(fetch, "long", journal=rs.Journal(uri, version="1"))
        return [row.v for row in frame.select(look("id").alias("v")).collect()]

    with pytest.raises(Exception, match="down"):
        run(1)
    up.touch()
    for partitions in (3, 2):
        assert run(partitions) == [2 * k for k in range(1000)]
    calls = [int(line) for line in log.read_text().split()]
    assert len(calls) <= 1000 + 64  # those that were made, and not yet kept, when the task failed
    assert set(calls) == set(range(1000))
