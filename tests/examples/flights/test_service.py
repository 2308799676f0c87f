"""The look-up service: real answers, honest counts, and an end that comes with its parent's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from examples.flights import data
from examples.flights.errors import DemoError
from examples.flights.service import Behaviour
from examples.flights.service_process import ServiceProcess
from tests.helpers import DEADLINE

QUICK = Behaviour(latency=0.0, slow_share=0.0)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("service") / "lookups.sqlite"
    data.write_database(data.find_files(), target)
    return target


@pytest.fixture
def service(database: Path, tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(database, QUICK, tmp_path / "log") as running:
        yield running


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=DEADLINE) as answer:
        return json.load(answer)


def status_of(url: str) -> int:
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(url)
    refused.value.close()
    return refused.value.code


def test_it_answers_from_the_real_tables(service: ServiceProcess) -> None:
    assert get(f"{service.url}/plane/N14228") == {
        "built": 1999,
        "type": "Fixed wing multi engine",
        "manufacturer": "BOEING",
        "model": "737-824",
        "engines": 2,
        "seats": 149,
        "speed": None,
        "engine": "Turbo-fan",
    }
    weather = get(f"{service.url}/weather/EWR/2013-01-01T10:00:00Z")
    assert weather["temp"] == 39.02
    assert weather["wind_gust"] is None
    assert list(weather) == list(data.WEATHER.values)


def test_it_tells_a_miss_from_a_wrong_request(service: ServiceProcess) -> None:
    assert status_of(f"{service.url}/plane/N0") == 404
    assert status_of(f"{service.url}/plane/N0/2") == 404
    assert status_of(f"{service.url}/airport/JFK") == 400
    assert service.stats()["misses"] == 2


def test_it_counts_what_it_holds_at_once(database: Path, tmp_path: Path) -> None:
    at_once = 8
    slow = Behaviour(latency=0.5, slow_share=0.0)
    with (
        ServiceProcess(database, slow, tmp_path / "log") as service,
        ThreadPoolExecutor(at_once) as pool,
    ):
        list(pool.map(get, [f"{service.url}/plane/N14228"] * at_once))
        stats = service.stats()
    assert 2 <= stats["max_held"] <= at_once
    assert stats["held"] == 0
    assert (stats["requests"], stats["hits"]) == (at_once, at_once)
    assert stats["tables"] == {"weather": 0, "plane": at_once}


def test_it_stops_with_requests_in_flight(database: Path, tmp_path: Path) -> None:
    slow = Behaviour(latency=3600.0, slow_share=0.0)
    with ThreadPoolExecutor(1) as pool:
        with ServiceProcess(database, slow, tmp_path / "log") as service:
            waiting = pool.submit(get, f"{service.url}/plane/N14228")
            deadline = time.monotonic() + DEADLINE
            while service.stats()["held"] == 0:
                assert time.monotonic() < deadline, "the request never arrived"
            process = psutil.Process(service.pid)
        assert not process.is_running()
        with pytest.raises(OSError):
            waiting.result(DEADLINE)


def test_it_does_not_outlive_a_killed_parent(database: Path, tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from examples.flights.service import Behaviour\n"
        "from examples.flights.service_process import ServiceProcess\n"
        "s = ServiceProcess(Path(sys.argv[1]), Behaviour(), Path(sys.argv[2]))\n"
        "print(s.pid, flush=True); time.sleep(3600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(database), str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        service = psutil.Process(int(parent.stdout.readline()))
        os.kill(parent.pid, signal.SIGKILL)
    service.wait(DEADLINE)  # raises if it still runs


def test_a_service_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="unable to open database file"):
        ServiceProcess(tmp_path / "none.sqlite", QUICK, tmp_path / "log")
