"""``named``: where an error came from, in notes, descriptions and figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.rules.probes import subscribed


def test_an_error_says_which_names_it_passed_once() -> None:
    failure = LookupError("no")
    stream = rsf.error(failure).name("orders").map(str).name("texts")
    for _ in range(2):
        with pytest.raises(LookupError):
            stream.to_list()
    assert failure.__notes__ == [
        "rstreams_fast: it passed 'orders'",
        "rstreams_fast: it passed 'texts'",
    ]


@dataclass(frozen=True)
class FrozenError(Exception):
    text: str


@pytest.mark.parametrize("operator", ["name", "map_async", "retry", "resume"])
def test_an_error_that_refuses_attributes_passes_with_its_note(operator: str) -> None:
    async def fail(_: object) -> Any:
        return fail_at_once()

    def fail_at_once(_: object = None) -> Any:
        raise failure

    failure, stream = FrozenError("no"), rsf.error(OSError())
    ways = {
        "name": rsf.error(failure).name("orders"),
        "map_async": rsf.range_(1).map_async(fail),
        "retry": stream.retry(when=fail_at_once),
        "resume": stream.on_error_resume(fail_at_once),
    }
    with pytest.raises(FrozenError):
        ways[operator].to_list()
    if operator in ("retry", "resume"):
        assert type(failure.__context__) is OSError
    else:
        assert "rstreams_fast: " in failure.__notes__[0]


def test_errors_from_below_pass_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        rsf.range_(3).name("numbers").map(lambda n: 1 // n).to_list()
    assert not hasattr(raised.value, "__notes__")


def test_the_name_is_in_the_description_and_among_the_figures() -> None:
    stream = rsf.range_(9).publish_on(prefetch=4).name("numbers").map(str)
    assert "name('numbers')" in stream.describe()
    subscription = subscribed(stream).subscription
    names = [metrics.name for metrics in rsf.metrics_of(subscription)]
    assert names[0].startswith("name('numbers')")
    assert names[1].startswith("publish_on")
    subscription.cancel()
