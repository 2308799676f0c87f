"""Subscribing on behalf of a subscriber: calls nest here, so every so many levels they stop to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.streams.engine.chain import Chained
from rstreams_fast.streams.engine.defaults import TRAMPOLINE_EVERY
from rstreams_fast.streams.engine.sink_subscriber import subscribe
from rstreams_fast.streams.engine.trampoline import TrampolineSubscription

__all__ = ["Below", "subscribe_to"]

A = TypeVar("A")


def subscribe_to(upstream: Publisher[Any], subscriber: Chained) -> None:
    """Subscribe a subscriber of the package to ``upstream``, which may raise instead of signalling
    (§1.9).

    One that stands on many others gets its signals, and is asked, from a trampoline: a chain, or a
    stream within a stream within a stream, takes a bounded part of the stack, however long it is.
    """
    if subscriber.depth < TRAMPOLINE_EVERY:
        subscribe(upstream, cast("Subscriber[Any]", subscriber))
    else:
        TrampolineSubscription(subscriber).start(upstream)


class Below(Generic[A]):
    """A publisher: a subscriber below ``upstream``, made anew for each subscriber.

    ``make(subscriber, argument)`` returns it. ``where``: the threads that it works on, in words.
    """

    def __init__(
        self,
        upstream: Publisher[Any],
        make: Callable[[Subscriber[Any], A], Chained],
        argument: A,
        where: str = "",
    ) -> None:
        self._upstream = upstream
        self._make = make
        self._argument = argument
        self.where = where

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        """Subscribe to upstream on behalf of ``subscriber``."""
        subscribe_to(self._upstream, self._make(subscriber, self._argument))
