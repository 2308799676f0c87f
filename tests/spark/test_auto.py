"""``concurrency="auto"``: it finds what a service can work on, also when that moves."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

import rstreams_fast.spark as rs
from bench.auto import Service as Served
from bench.auto import start
from tests.helpers import wait_until
from tests.spark.stages import Service, made, values

pytestmark = pytest.mark.usefixtures("no_leaked_threads")


@pytest.mark.slow  # how fast it does is a question of time
def test_it_follows_a_service_behind_a_socket() -> None:
    service, ended = Served(20), threading.Event()
    thread = start(service.port, ended)
    try:
        for capacity in (20, 100, 30):
            service.capacity = capacity
            wait_until(
                lambda most=capacity: 0.9 * most <= service.working <= most, "the capacity in use"
            )
    finally:
        ended.set()
        thread.join()
        service.close()


def test_it_stays_below_the_limit(name: str) -> None:
    words: Any = {"concurrency": "auto", "limit": rs.Limit(name, concurrency=7)}
    service = Service()
    assert values(made(rs.lookup, service.look, pa.int64(), **words), range(500)) == list(
        range(500)
    )
    assert service.most <= 7
