"""Ends that make one thing of all elements: how these reach what makes it.

Burst by burst, where our own runs send them: to look at many together costs less than a call for
each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from rstreams_fast.api import UNBOUNDED, Publisher
from rstreams_fast.runtime.parking import refuse_in_loop
from rstreams_fast.streams.engine.boundary import ListSubscriber
from rstreams_fast.streams.engine.defaults import ARRAYS_PREFETCH
from rstreams_fast.streams.engine.sink_subscriber import check_publisher
from rstreams_fast.streams.sinks.for_each import ForEach
from rstreams_fast.streams.sinks.iterate import Iteration
from rstreams_fast.streams.sinks.results import drive

__all__ = ["Collector", "collect", "collect_async"]

R_co = TypeVar("R_co", covariant=True)


class Collector(Protocol[R_co]):
    """What the elements are handed to. What it raises cancels upstream."""

    def add(self, element: Any) -> None:
        """Take an element."""

    def add_all(self, elements: list[Any]) -> None:
        """Take some elements."""

    def result(self) -> R_co:
        """Return what has become of them, when no other follows."""


class _CollectorSubscriber(ListSubscriber, ForEach[Any]):
    """Foreign publishers call ``on_next``, for each element."""

    __slots__ = ("_on_elements", "burst")

    def __init__(self, gatherer: Collector[Any]) -> None:
        super().__init__(gatherer.add, None, None, UNBOUNDED)
        self._on_elements: Callable[[list[Any]], None] | None = gatherer.add_all
        self.burst: list[Any] = []

    def on_burst(self) -> None:
        elements = self.burst[:]
        self.burst.clear()  # it stays the one that the run appends to
        on_elements = self._on_elements
        if not elements or on_elements is None:
            return
        try:
            on_elements(elements)
        except Exception as raised:
            del elements, on_elements  # the traceback keeps this frame (§3.13)
            self.fail(raised)
        except BaseException as leaving:
            del elements, on_elements
            self.leave(leaving)
            raise

    def drop_references(self) -> None:
        super().drop_references()
        self._on_elements = None
        self.burst.clear()


def collect(name: str, publisher: Publisher[Any], gatherer: Collector[R_co]) -> R_co:
    """Hand over all elements, and wait for the end; not inside a running event loop."""
    check_publisher(publisher)
    refuse_in_loop(f"{name}()", f"use 'await {name}_async()' there")
    drive(publisher, _CollectorSubscriber(gatherer))
    return gatherer.result()


async def collect_async(publisher: Publisher[Any], gatherer: Collector[R_co]) -> R_co:
    """Hand over all elements without blocking the loop; who cancels this cancels upstream, once."""
    iteration = Iteration(publisher, ARRAYS_PREFETCH)
    try:
        while burst := await iteration.next_burst():
            gatherer.add_all(burst)
    finally:
        await iteration.aclose()
    return gatherer.result()
