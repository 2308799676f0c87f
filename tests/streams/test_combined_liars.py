"""Whatever a publisher does to a combination, its subscriber sees a correct publisher."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.rules.probes import Recorder
from tests.streams.liars import COMBINED, LIARS, Liar


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="rstreams_fast")  # it reports what was dropped


@pytest.mark.parametrize("one_by_one", [False, True], ids=["unbounded", "one by one"])
@pytest.mark.parametrize("kind", LIARS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", COMBINED)
def test_a_subscriber_never_sees_a_broken_rule(
    name: str, kind: type[Liar], one_by_one: bool
) -> None:
    def again(recorder: Recorder, _element: Any) -> None:
        recorder.subscription.request(1)

    liar = kind()
    recorder = Recorder(request=1, on_next=again) if one_by_one else Recorder(request=rsf.UNBOUNDED)
    COMBINED[name](liar).subscribe(recorder)
    terminal = recorder.wait_terminal()
    recorder.check()
    assert recorder.max_depth <= 1
    expected = LIARS[kind]
    error = recorder.error
    assert (None if error is None else type(error)) in expected, terminal
    assert liar.cancels <= 1
    second = getattr(liar, "second", None)
    assert second is None or second.cancels == 1


@pytest.mark.parametrize("kind", LIARS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", COMBINED)
def test_a_cancelled_one_sees_nothing_more_and_is_forgotten(name: str, kind: type[Liar]) -> None:
    def stop(recorder: Recorder, _element: Any) -> None:
        recorder.subscription.cancel()

    liar = kind()
    recorder = Recorder(request=rsf.UNBOUNDED, on_next=stop)
    COMBINED[name](liar).subscribe(recorder)
    recorder.check()
    assert len(recorder.elements) <= 1
    assert liar.cancels <= 1
    subscription, gone = recorder.subscription, weakref.ref(recorder)
    del recorder
    if gone() is not None:
        gc.collect()  # an error of the liar's may keep frames in a cycle
    assert gone() is None
    subscription.request(1)
    subscription.cancel()
