"""A journal in an object store: pyarrow's S3 client, and a server of S3's protocol on loopback."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.server import DomainDispatcherApplication, create_backend_app
from pyarrow import fs
from werkzeug.serving import make_server

import rstreams_fast.spark as rs
from rstreams_fast.calls.journal.segments import BATCH_ROWS, Folder, folders_of
from tests.helpers import DEADLINE, run_threads
from tests.spark.conftest import S3_KEYS
from tests.spark.journals import Doubling, answer, stage_of, values


class Holding:
    """A server of S3's protocol, which can hold back the first segment that it is given."""

    def __init__(self) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self.held, self.released = threading.Event(), threading.Event()
        self.released.set()

    def __call__(self, request: dict[str, Any], start: Any) -> Any:
        if request["REQUEST_METHOD"] == "PUT" and request["PATH_INFO"].endswith(".arrow"):
            self.held.set()
            assert self.released.wait(DEADLINE)
        return self._app(request, start)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Holding]]:
    app = Holding()
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}", app
    server.shutdown()
    thread.join()


@pytest.fixture
def server(served: tuple[str, Holding]) -> str:
    return served[0]


@pytest.fixture
def holding(served: tuple[str, Holding]) -> Iterator[Holding]:
    served[1].held.clear()
    served[1].released.clear()
    yield served[1]
    served[1].released.set()


@pytest.fixture
def s3(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place in a bucket of its own."""
    for name, value in S3_KEYS.items():
        monkeypatch.setenv(name, value)
    bucket = tmp_path.name.replace("_", "-")
    where = f"endpoint_override={server}&scheme=http&region=eu-central-1"
    uri = f"s3://{bucket}/answers/of%20all?{where}"
    files, _ = fs.FileSystem.from_uri(f"{uri}&allow_bucket_creation=true")
    files.create_dir(bucket)
    return uri


def segments(s3: str) -> int:
    return sum(len(folder.sizes()) for folder in folders_of(s3))


def test_answers_are_found_again_merged_and_bounded(s3: str) -> None:
    fetch = Doubling()
    calls, stage = fetch.calls, stage_of(fetch, s3)
    for most in (1000, 1500, 2500):
        assert values(stage, range(most)) == [answer(k) for k in range(most)]
    keys = [*range(2000, 2500), *range(2000)]
    assert values(stage, keys[:500], keys[500:]) == [answer(k) for k in keys]
    assert sorted(calls) == list(range(2500))
    assert segments(s3) == 3
    assert rs.Journal(s3, version="1").compact() == 2
    assert segments(s3) == 1
    values(stage, range(2500))
    assert len(calls) == 2500
    rs.Journal(s3, version="1", max_bytes=1).compact()  # less than any segment has
    assert segments(s3) == 0
    values(stage, range(10))
    assert len(calls) == 2510


@pytest.mark.parametrize("guard", [{}, {"timeout": 60.0}])
def test_calls_wait_for_a_store_that_does_not_answer(
    s3: str, holding: Holding, guard: dict[str, Any]
) -> None:
    """The journal keeps a few segments of answers in memory, and no more."""
    fetch = Doubling()

    def let_go() -> None:
        holding.held.wait(DEADLINE)
        before = -1
        while len(fetch.calls) > before:
            before = len(fetch.calls)
            time.sleep(0.5)
        holding.released.set()
        assert 1000 < before < 50_000

    def run() -> None:
        assert values(stage_of(fetch, s3, **guard), range(60_000)) == [
            answer(k) for k in range(60_000)
        ]

    run_threads([let_go, run], timeout=2 * DEADLINE)  # a store in Python is slow
    assert len(fetch.calls) == 60_000


@pytest.mark.slow
def test_writers_and_compactors_do_not_mind_each_other(s3: str) -> None:
    fetch, done = Doubling(), threading.Event()

    def compacting() -> None:
        while not done.is_set():
            rs.Journal(s3, version="1").compact()

    def writing() -> None:
        try:
            for start in range(0, 500, 50):
                keys = range(start, start + 50)
                assert values(stage_of(fetch, s3), keys) == [answer(k) for k in keys]
        finally:
            done.set()

    run_threads([compacting, writing])
    assert values(stage_of(fetch, s3), range(500)) == [answer(k) for k in range(500)]
    assert sorted(fetch.calls) == list(range(500))


@pytest.mark.parametrize("batches", [1, 3])
def test_a_segment_that_is_merged_while_it_is_read_is_read_where_it_is_now(
    s3: str, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = Doubling()
    keys = range(batches * BATCH_ROWS)
    values(stage_of(fetch, s3), keys[::2])
    values(stage_of(fetch, s3), keys[1::2])
    opened = Folder.open
    with monkeypatch.context() as patch:

        def merged_meanwhile(folder: Folder, name: str, checked: bool = False) -> Any:
            reader = opened(folder, name, checked)
            patch.undo()
            assert rs.Journal(s3, version="1").compact() == 1
            return reader

        patch.setattr(Folder, "open", merged_meanwhile)
        found = values(stage_of(fetch, s3), keys)
    assert found == [answer(k) for k in keys]
    assert sorted(fetch.calls) == list(keys)


def test_a_store_that_refuses_fails_the_task_and_shows_no_secret(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in S3_KEYS.items():
        monkeypatch.setenv(name, value)

    where = f"endpoint_override={server}&scheme=http&region=eu-central-1"
    stage = stage_of(Doubling(), f"s3://no-such-bucket/answers?{where}")
    begin = time.monotonic()
    with pytest.raises(OSError, match="no-such-bucket") as refused:
        values(stage, range(3))
    assert time.monotonic() - begin < 60
    assert S3_KEYS["AWS_SECRET_ACCESS_KEY"] not in "".join(
        [str(refused.value), *refused.value.__notes__]
    )


@pytest.mark.spark
@pytest.mark.parametrize(
    ("what", "place"), [("lookup", "local"), pytest.param("enrich", "s3", marks=pytest.mark.slow)]
)
def test_a_job_that_is_started_again_pays_for_the_rest(
    spark: Any, request: pytest.FixtureRequest, tmp_path: Path, what: str, place: str
) -> None:
    uri = request.getfixturevalue("s3") if place == "s3" else str(tmp_path / "journal")
    journal = rs.Journal(uri, version="1")
    log, down = str(tmp_path / "calls"), tmp_path / "down"
    down.touch()
    service = str(down)

    async def fetch(k: int) -> int:
        if k == 700 and os.path.exists(service):  # noqa: ASYNC240, PTH110
            raise OSError("down")
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, b"%d\n" % k)
        os.close(file)
        await asyncio.sleep(0.001)
        return 2 * k

    def run(partitions: int) -> list[int]:
        frame = spark.range(0, 1000, 1, partitions)
        if what == "lookup":
            frame = frame.withColumn(
                "v", rs.lookup(rs.Policy(journal=journal)(fetch), "long")("id")
            )
        else:
            frame = frame.transform(
                rs.enrich(rs.Policy(journal=journal)(fetch), on="id", output="v long")
            )
        return [row.v for row in frame.orderBy("id").collect()]

    with pytest.raises(Exception, match="down"):
        run(1)  # beside another task, which goes on a while, others would call for the same keys
    paid = len(Path(log).read_text().split())
    assert 0 < paid < 1000
    down.unlink()
    for partitions in (5, 1):
        assert run(partitions) == [2 * k for k in range(1000)]
    again = len(Path(log).read_text().split()) - 1000
    assert again <= 64  # those in flight when the task failed
