"""Multicast: several subscribers share one upstream subscription, and get the same elements."""

from __future__ import annotations

import threading
from copy import copy
from typing import Any, Literal, TypeVar

from rstreams_fast.api import Processor, Publisher, Subscriber
from rstreams_fast.core._common import check_count
from rstreams_fast.errors import shown
from rstreams_fast.streams.drain import check_subscriber
from rstreams_fast.streams.hub import Hub, HubOptions, HubSubscription, Retention, check_choice
from rstreams_fast.streams.registry import Registry
from rstreams_fast.streams.tuning import MULTICAST_BUFFER

__all__ = ["Multicast", "MulticastProcessor", "OnLastCancel", "Shared"]

T = TypeVar("T")

OnLastCancel = Literal["shut_down", "keep", "restart"]


class MulticastProcessor(Hub[T], Processor[T, T]):
    """Hands the elements of one upstream to all its subscribers, through one bounded buffer.

    Subscribe it to a publisher, and subscribers to it, in any order; or call ``on_next``,
    ``on_error`` and ``on_complete`` yourself. Every subscriber gets the same elements in the same
    sequence, and may be ahead of others by at most ``buffer_size`` elements. One that comes late
    starts at the oldest element that is still in the buffer for somebody. After the end it gets the
    terminal signal at once.

    ``slow="gate"``: nothing is asked of upstream while the slowest subscriber lags by
    ``buffer_size``. ``slow="drop"``: the fastest sets the pace, and one that lags by more than
    ``buffer_size`` is dropped with a :class:`BufferOverflow`.

    ``on_last_cancel="shut_down"``: when the last subscriber has cancelled, upstream is cancelled,
    and who comes later gets a :class:`ShutDown`. A subscriber that stays prevents that. ``"keep"``:
    upstream waits, unasked, for the next subscriber; it is cancelled when the garbage collector
    finds that nobody can come any more.

    Upstream is asked for what the greediest subscriber asked for, as far as there is room, and for
    nothing while there is none. What it sends unasked is buffered; where there is no room all ends
    with a :class:`DemandExceeded` (with ``slow="drop"`` the slow are dropped instead). An error
    overtakes the buffer, unless ``delay_error``; the completion comes right after the last element,
    without a request (§2.9). A subscriber that is subscribed twice at a time is told
    :class:`AlreadySubscribed` by ``on_error``, and its subscription has ended (§1.10).

    Everything may be called from any thread. Elements are delivered on the thread that brings them
    or that asks for them.
    """

    __slots__ = ()

    def __init__(
        self,
        *,
        buffer_size: int = MULTICAST_BUFFER,
        slow: Literal["gate", "drop"] = "gate",
        on_last_cancel: Literal["shut_down", "keep"] = "shut_down",
        delay_error: bool = False,
    ) -> None:
        options = HubOptions(buffer_size, slow, delay_error)
        check_choice("on_last_cancel", on_last_cancel, Literal["shut_down", "keep"])
        name = f"MulticastProcessor: {options.describe()}"
        super().__init__(options, name=name, keeps=on_last_cancel == "keep")


class Multicast:
    """The boundary of ``Stream.multicast``: all who subscribe below it share one hub."""

    #: The hub trusts nobody.
    guards = True

    def __init__(self, options: HubOptions, min_subscribers: int, on_last_cancel: str) -> None:
        self.options = options
        check_choice("on_last_cancel", on_last_cancel, OnLastCancel)
        self.on_last_cancel = on_last_cancel
        self.min_subscribers = check_count("min_subscribers", min_subscribers, 1)
        self._lock = threading.RLock()
        self._shared: Shared | None = None

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        """Return the one publisher that all share; only the first ``upstream`` counts.

        A stream is a description, and what is above this is the same each time.
        """
        with self._lock:
            if self._shared is None:
                # It is given a copy, which knows of no Shared: each would keep the other.
                self._shared = Shared(upstream, copy(self))
            return self._shared

    def retention(self) -> Retention | None:
        """What a new hub keeps for those who come late."""
        return None

    def describe(self) -> str:
        """Say how many elements may be held, for whom, and what ends it."""
        return f"multicast: {self.describe_sharing()}"

    def describe_sharing(self) -> str:
        """The part of that which does not depend on what is kept."""
        words = {
            "shut_down": "shuts down",
            "keep": "waits for others",
            "restart": "starts anew for others",
        }
        begins = f", begins with {shown(self.min_subscribers)}" if self.min_subscribers > 1 else ""
        return (
            f"{self.options.describe()}{begins}; "
            f"without subscribers it {words[self.on_last_cancel]}"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None, "_shared": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock())


class Shared:
    """The publisher of a multicast stream: a hub, or, if it restarts, one hub after the other."""

    def __init__(self, upstream: Publisher[Any], multicast: Multicast) -> None:
        self._upstream = upstream
        self._multicast = multicast
        self._name = multicast.describe()
        self._restarts = multicast.on_last_cancel == "restart"
        # Of all hubs: the last may still be at work.
        self._registry: Registry[HubSubscription] = Registry()
        self._lock = threading.RLock()
        self._hub = self._new_hub()

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        """Subscribe to the hub, and, if that makes enough subscribers, the hub to upstream."""
        check_subscriber(subscriber)
        hub = self._hub
        if hub.put_off(self.subscribe, subscriber):
            return
        while not hub.admit(subscriber, unless_ended=self._restarts):
            with self._lock:
                if self._hub is hub:
                    self._hub = self._new_hub()
                hub = self._hub
        hub.connect(self._upstream, self._multicast.min_subscribers)

    def _new_hub(self) -> Hub[Any]:
        multicast = self._multicast
        return Hub(
            multicast.options,
            name=self._name,
            keeps=multicast.on_last_cancel == "keep",
            retention=multicast.retention(),
            registry=self._registry,
            connected=False,
        )
