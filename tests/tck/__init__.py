"""The kit on everything: on what we ship, on what others do, on itself."""

from typing import Any, Final

#: Seconds without a signal that count as silence, for each of two thousand tests that listen for
#: it. ``make tck`` gives them more.
SILENCE: Final = 0.01
#: Cold streams keep no list of their subscribers: each subscription is a run of its own.
NO_REGISTRY: Final = ("beyond_spec110_*",)
#: What runs side by side comes in any order, another one for each subscriber.
NO_ORDER: Final = (*NO_REGISTRY, "optional_spec111_multicast_*")


def add_cases(module: dict[str, Any], base: type, member: str, **values: Any) -> None:
    """To ``module`` a verification for each name: ``base`` with another ``member``."""
    for name, value in values.items():
        own = {"__module__": module["__name__"], "__test__": True, member: value}
        module[name] = type(name, (base,), own)
