"""What goes wrong on a real cluster: right rows or one clear error, and nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.spark.faults import FAULTS, Driver

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    made = Driver(tmp_path_factory.mktemp("cluster"))
    try:
        yield made
        made.end()
        assert not made.left()
    finally:
        made.close()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_loses_nothing_and_leaves_nothing(driver: Driver, name: str) -> None:
    told = driver.happen(name)
    assert "failed" not in told, told["failed"]
