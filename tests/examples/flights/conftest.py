"""The tests of the demo run real processes; here is who starts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.examples.flights.command import Command, launch
from tests.examples.flights.together import Together

Start = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start the demo with arguments, or a script given as ``script``."""
    return partial(launch, tmp_path)


@pytest.fixture(scope="session")
def together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Together]:
    """What takes long, under way from now on."""
    commands = Together(tmp_path_factory.mktemp("together"))
    yield commands
    commands.close()
