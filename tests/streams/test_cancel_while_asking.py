"""A cancel from one thread while another one is inside ``request``: never two calls at once (§2.7).

The publishers are not ours, and say how they are called. They need not bear two calls at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import rstreams_fast as rsf
from tests.helpers import start_thread, wait_for
from tests.operators import apart
from tests.operators.entry import ignore
from tests.rules.probes import Recorder

Take = Callable[[Any], object]
End = Callable[[rsf.Stream[Any], Take], Callable[[], object]]


def below(stages: Callable[[Any], Any]) -> End:
    def subscribe(stream: rsf.Stream[Any], take: Take) -> Callable[[], object]:
        downstream = Recorder(request=rsf.UNBOUNDED, on_next=lambda _r, x: take(x))
        start_thread(lambda: stages(stream).subscribe(downstream))
        return lambda: downstream.subscription.cancel()  # noqa: PLW0108 - it is there later

    return subscribe


def for_each(stream: rsf.Stream[Any], take: Take) -> Callable[[], object]:
    begun: list[Any] = []
    publisher = stream.do_on_subscribe(begun.append)
    start_thread(lambda: publisher.for_each(take), "for_each")
    return lambda: begun[0].cancel()  # noqa: PLW0108 - it is there when it is called


#: Each calls ``subscribe`` of the stream in another thread, and returns what cancels it.
ENDS: dict[str, End] = {
    "for_each": for_each,
    **{name: below(use.over) for name, use in apart().items()},
}


class Asked:
    """Does not come back from ``request`` before it is let go, and says who called when."""

    def __init__(self, emit: Callable[[Any], None]) -> None:
        self._emit = emit
        self.inside = threading.Event()
        self.left = threading.Event()
        self.cancelled = threading.Event()
        self.overlapped = False
        self.cancels = 0
        self.asker = 0

    def subscribe(self, subscriber: Any, /) -> None:
        self.subscriber = subscriber
        subscriber.on_subscribe(self)

    def request(self, n: int, /) -> None:
        if self.inside.is_set():
            return
        self.asker = threading.get_ident()
        self.inside.set()
        self._emit(self)
        self.left.set()

    def cancel(self) -> None:
        if not self.left.is_set() and threading.get_ident() != self.asker:
            self.overlapped = True
        self.cancels += 1
        self.cancelled.set()


@pytest.mark.parametrize("name", ENDS)
def test_is_left_to_the_thread_that_asks(name: str) -> None:
    drop_references = threading.Event()
    publisher = Asked(lambda _: wait_for(drop_references, "leave to come back"))
    cancel = ENDS[name](rsf.from_publisher(publisher), ignore)
    wait_for(publisher.inside, "a request")
    cancel()  # does not wait for the request, either
    assert not publisher.cancelled.is_set()
    drop_references.set()
    wait_for(publisher.cancelled, "the cancel")
    assert not publisher.overlapped
    assert publisher.cancels == 1


@pytest.mark.parametrize("name", ENDS)
def test_stops_a_publisher_that_goes_on_and_on_in_request(name: str) -> None:
    cancel_now, told = threading.Event(), threading.Event()

    def emit_for_ever(publisher: Asked) -> None:
        cancel_now.set()
        wait_for(told, "the cancel from another thread")
        while not publisher.cancelled.is_set():
            publisher.subscriber.on_next(1)

    publisher, taken = Asked(emit_for_ever), list[Any]()
    cancel = ENDS[name](rsf.from_publisher(publisher), taken.append)
    wait_for(cancel_now, "a request")
    cancel()
    told.set()
    wait_for(publisher.left, "the end of the request")
    assert not publisher.overlapped
    assert (publisher.cancels, taken) == (1, [])
