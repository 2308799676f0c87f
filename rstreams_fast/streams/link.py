"""One of several publishers above a subscription: our subscriber to it, which trusts nobody.

What the publisher does against the rules, it does to its own link only: ``None``, elements that
were not asked for, signals after the end or from several threads, a second subscription, calls that
raise. The owner gets elements that it asked for and at most one end.
"""

from __future__ import annotations

from typing import Any, Protocol

from rstreams_fast.api import Publisher, Subscription
from rstreams_fast.core import DemandCounter
from rstreams_fast.errors import DemandExceeded, NoneSignal, report_dropped
from rstreams_fast.streams.drain import Live, Upstream
from rstreams_fast.streams.figures import BoundaryFigures
from rstreams_fast.streams.inlets import subscribe

__all__ = ["Link", "LinkOwner"]


class LinkOwner(Protocol):
    """What a link reports to, on the threads that its publisher signals on."""

    def _link_attached(self, link: Any, /) -> None:
        """It can be asked now; once at most."""

    def _link_next(self, link: Any, element: Any, /) -> None:
        """An element has come that was asked for."""

    def _link_ended(self, link: Any, error: BaseException | None, /) -> None:
        """Nothing more will come: it has completed, or failed with ``error``."""


class Link(Live):
    """Subscriber to one publisher, for an owner that has others, too."""

    __slots__ = ("_expected", "_owner", "_upstream")

    def __init__(self, owner: LinkOwner) -> None:
        self._owner: LinkOwner | None = owner
        self._upstream = Upstream()
        self._expected = DemandCounter()  # asked for, and not come yet

    # -- for the owner ---------------------------------------------------------------------------

    def subscribe(self, publisher: Publisher[Any]) -> None:
        """Subscribe to ``publisher``, which may raise instead of signalling (§1.9)."""
        subscribe(publisher, self)

    def ask(self, n: int) -> None:
        """Ask for ``n`` more elements; one thread at a time (§2.7)."""
        self._expected.request(n)
        try:
            self._upstream.request(n)
        except RecursionError:  # to where the stack has room again
            raise
        except Exception as raised:  # §3.16
            self._break(raised)

    def cancel(self) -> None:
        """Cancel, unless it is over, and forget the owner (§3.13). Any thread."""
        self._owner = None
        self._upstream.cancel()

    def forget(self) -> None:
        """Let go of the owner, who has no more use for this."""
        self._owner = None

    def figures(self) -> tuple[BoundaryFigures, ...]:
        """The figures of the boundaries above."""
        return self._upstream.figures()

    # -- signals from the publisher --------------------------------------------------------------

    def on_subscribe(self, subscription: Subscription, /) -> None:
        """Take the first subscription, cancel any other (§2.5)."""
        if self._upstream.attach(subscription):
            owner = self._owner
            if owner is not None:
                owner._link_attached(self)

    def on_next(self, element: Any, /) -> None:
        """Hand on an element that was asked for."""
        owner = self._owner_of(element)
        if owner is not None:
            owner._link_next(self, element)

    def _owner_of(self, element: Any) -> Any:
        """Return the owner, if ``element`` has been asked for and is still wanted."""
        if element is None:
            error = NoneSignal("§2.13: the publisher signalled on_next(None)")
            self._break(error)
            raise error
        owner = self._owner
        if owner is None or self._upstream.over:  # §2.8
            self._upstream.unwanted()
            return None
        try:
            self._expected.fulfil(1)
        except DemandExceeded:
            self._break(DemandExceeded("§1.1: more elements came than had been asked for"))
            return None
        return owner

    def on_error(self, error: BaseException, /) -> None:
        """Hand on the first end."""
        if not isinstance(error, BaseException):
            wrong = NoneSignal(
                "§2.13: on_error needs an exception instance, the publisher signalled "
                f"on_error({error!r})"
            )
            self.on_error(wrong)
            raise wrong
        if not self._end(error):
            report_dropped(error, "an error after the end of the stream")

    def on_complete(self) -> None:
        """Hand on the first end."""
        self._end(None)

    def _end(self, error: BaseException | None) -> bool:
        if not self._upstream.ended():
            return False
        self._upstream.never_attached()  # one that comes now is cancelled
        owner = self._owner
        if owner is not None:
            owner._link_ended(self, error)
        return True

    def _break(self, error: BaseException) -> None:
        """End with ``error``, which the publisher cannot know of."""
        owner, over = self._owner, self._upstream.over
        self.cancel()
        if owner is not None and not over:
            owner._link_ended(self, error)
