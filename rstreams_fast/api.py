"""The four interfaces of Reactive Streams, as runtime-checkable protocols.

An object with the methods of an interface implements it. The object need not derive from the
protocol, but may. Rule numbers refer to the Reactive Streams specification 1.0.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeVar, runtime_checkable

__all__ = ["UNBOUNDED", "Processor", "Publisher", "Subscriber", "Subscription"]

UNBOUNDED: Final = 2**63 - 1
"""The demand without a bound (§3.17). Any larger ``int`` means the same."""

T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)


@runtime_checkable
class Subscription(Protocol):
    """The one-to-one link between a publisher and a subscriber, held by the subscriber.

    Both methods return at once and never raise (§3.4, §3.5, §3.15, §3.16). Implementations in
    this package may be called from any thread.
    """

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more elements (§3.8).

        Demand adds up, and saturates at ``UNBOUNDED`` (§3.17). After ``cancel`` or a terminal
        signal the call has no effect (§3.6). A wrong ``n`` is signalled by ``on_error``, not
        raised: ``n <= 0`` as a ``ValueError`` that names §3.9, and anything but an ``int`` as a
        ``TypeError``.

        Args:
            n: The number of elements, 1 or more.
        """
        ...

    def cancel(self) -> None:
        """Ask the publisher to stop, and to drop references to the subscriber (§3.12, §3.13).

        May be called any number of times (§3.7).
        """
        ...


class OnNext(Protocol[T_contra]):
    """The type of an attribute that replaces the method ``on_next``.

    pyright takes an attribute of type ``Callable`` for a method, and expects one argument less.
    """

    def __call__(self, element: T_contra, /) -> None: ...


@runtime_checkable
class Subscriber(Protocol[T_contra]):
    """Receives ``on_subscribe on_next* (on_error | on_complete)?``, one signal at a time (§1.3).

    No method may raise, except ``TypeError`` for ``None`` (§2.13).
    """

    def on_subscribe(self, subscription: Subscription, /) -> None:
        """Receive the subscription, before any other signal and once only (§1.9, §2.12).

        Args:
            subscription: Asks the publisher for elements, and cancels.
        """
        ...

    def on_next(self, element: T_contra, /) -> None:
        """Receive one of the requested elements (§1.1).

        Args:
            element: The element; never ``None``.
        """
        ...

    def on_error(self, error: BaseException, /) -> None:
        """Receive the error that ended the stream; nothing follows (§1.7).

        Args:
            error: An exception instance.
        """
        ...

    def on_complete(self) -> None:
        """Receive the end of the stream; nothing follows (§1.7)."""
        ...


@runtime_checkable
class Publisher(Protocol[T_co]):
    """Delivers elements to its subscribers when they request them."""

    def subscribe(self, subscriber: Subscriber[T_co], /) -> None:
        """Signal to ``subscriber``: first ``on_subscribe`` (§1.9), and elements on request.

        All failures but the ``TypeError`` below are signalled by ``on_error``.

        Args:
            subscriber: An object with the four methods of ``Subscriber``.

        Raises:
            TypeError: ``subscriber`` is ``None``, or lacks one of the four methods.
        """
        ...


@runtime_checkable
class Processor(Subscriber[T_contra], Publisher[T_co], Protocol[T_contra, T_co]):
    """A stage: a subscriber to its upstream and a publisher to its downstream (§4.1)."""
