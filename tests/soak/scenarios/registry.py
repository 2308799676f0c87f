"""The scenarios, by name."""

from __future__ import annotations

from collections.abc import Callable

from tests.soak.chance import Chance
from tests.soak.place import Place

Scenario = Callable[[Chance, Place], None]

SCENARIOS: dict[str, Scenario] = {}


def scenario(run: Scenario) -> Scenario:
    """Have ``run`` take part. It ends by itself, and raises what it finds wrong."""
    name = f"{run.__module__.rpartition('.')[2]}.{run.__name__}"
    assert name not in SCENARIOS
    SCENARIOS[name] = run
    return run
