"""The four interfaces of Reactive Streams, as runtime-checkable protocols.

An object that has the methods of an interface implements the interface. The object's class may
derive from the protocol, but need not. Rule numbers, such as §1.3, refer to the Reactive Streams
specification 1.0.
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
    """The link between one publisher and one subscriber. The subscriber calls its two methods.

    Both methods return immediately and never raise (§3.4, §3.5, §3.15, §3.16). Any thread may call
    the methods of the subscriptions that this package makes.
    """

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more elements (§3.8).

        Demand adds up, and saturates at ``UNBOUNDED`` (§3.17). After ``cancel`` or a terminal
        signal the call has no effect (§3.6). The call never raises an error for a wrong ``n``.
        Instead, ``on_error`` gets a ``ValueError`` that names §3.9 if ``n <= 0``, and a
        ``TypeError`` if ``n`` is not an ``int``.

        Args:
            n: The number of elements, 1 or more.
        """
        ...

    def cancel(self) -> None:
        """Ask the publisher to stop, and to drop references to the subscriber (§3.12, §3.13).

        The subscriber may call this any number of times (§3.7).
        """
        ...


class OnNext(Protocol[T_contra]):
    """The type of a subscriber's attribute ``on_next`` that holds a function, in place of a method.

    ``Callable`` cannot be this type: pyright would treat the attribute as a method, and would count
    ``self`` as the first parameter of the function.
    """

    def __call__(self, element: T_contra, /) -> None: ...


@runtime_checkable
class Subscriber(Protocol[T_contra]):
    """Receives ``on_subscribe on_next* (on_error | on_complete)?``, one signal at a time (§1.3).

    A method may raise only a ``TypeError``, for the argument ``None`` (§2.13).
    """

    def on_subscribe(self, subscription: Subscription, /) -> None:
        """Receive the subscription, once only, and before any other signal (§1.9, §2.12).

        Args:
            subscription: The object with which the subscriber requests elements, or cancels.
        """
        ...

    def on_next(self, element: T_contra, /) -> None:
        """Receive one of the requested elements (§1.1).

        Args:
            element: The element; never ``None``.
        """
        ...

    def on_error(self, error: BaseException, /) -> None:
        """Receive the error that ended the stream. No signal follows (§1.7).

        Args:
            error: An exception instance.
        """
        ...

    def on_complete(self) -> None:
        """Learn that the stream has completed. No signal follows (§1.7)."""
        ...


@runtime_checkable
class Publisher(Protocol[T_co]):
    """Delivers elements to its subscribers when they request them."""

    def subscribe(self, subscriber: Subscriber[T_co], /) -> None:
        """Call ``subscriber.on_subscribe`` (§1.9), and then deliver elements on request.

        This call raises only the ``TypeError`` below. ``on_error`` signals all other failures.

        Args:
            subscriber: An object with the four methods of ``Subscriber``.

        Raises:
            TypeError: ``subscriber`` is ``None``, or lacks one of the four methods.
        """
        ...


@runtime_checkable
class Processor(Subscriber[T_contra], Publisher[T_co], Protocol[T_contra, T_co]):
    """A processing stage: subscribes to its upstream, and publishes to its downstream (§4.1)."""
