"""Python's publishers and subscribers as Java's, and Java's as Python's. Needs a running JVM.

The bridge holds nobody: a Java subscriber is kept by the Python publisher alone, through the one
object made here for it, so that §3.13 judges the publisher and not the bridge.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jpype
from jpype import JImplements, JOverride

__all__ = [
    "JavaProbe",
    "JavaPublisher",
    "JavaSubscriber",
    "PythonProcessor",
    "PythonPublisher",
    "PythonSubscriber",
]

#: Calls a function of the implementation: here and now, or on the asyncio loop it is bound to.
Call = Callable[..., Any]

_RS = "org.reactivestreams."
_LONGEST = 2**63 - 1
_WHITEBOX = _RS + "tck.SubscriberWhiteboxVerification$"
_attachment = threading.local()


class _Attachment:
    """Detaches a thread from the JVM as it ends, or the JVM would count it as running for ever."""

    def __del__(self) -> None:
        if jpype.isJVMStarted():
            jpype.java.lang.Thread.detach()


def attach() -> None:
    """To be called wherever Python's own threads enter Java; in Java's it does nothing."""
    if not hasattr(_attachment, "held") and not jpype.java.lang.Thread.isAttached():
        _attachment.held = _Attachment()


# -- what crosses ----------------------------------------------------------------------------------
def to_java_error(error: BaseException) -> Any:
    """The Java exception for a Python one (§1.9, §2.13: None is null; §3.9: ValueError)."""
    if isinstance(error, jpype.JException):
        return error
    errors = jpype.JClass("jvmtck.Errors")
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, TypeError):
        return errors.nullPointer(text)
    if isinstance(error, ValueError):
        return errors.illegalArgument(text)
    if isinstance(error, RuntimeError):
        return errors.illegalState(text)
    return errors.other(text)


def to_python_error(error: Any) -> Any:
    """A Java exception for Python: itself, but ValueError and TypeError where Python has them."""
    if isinstance(error, jpype.java.lang.IllegalArgumentException):
        return ValueError(str(error.getMessage()))
    if isinstance(error, jpype.java.lang.NullPointerException):
        return TypeError(str(error.getMessage()))
    return error


def to_java(element: Any) -> Any:
    """An element on its way to Java: what Java knows as it is, lists as lists, else as text.

    The kit only compares elements, so equal ones must stay equal.
    """
    if element is None or isinstance(element, jpype.JObject | int | float | str):
        return element
    if isinstance(element, list | tuple):
        items = jpype.java.util.ArrayList()
        for item in element:
            items.add(to_java(item))
        return items
    return repr(element)


def _returning(call: Call, function: Callable[..., Any], *arguments: Any) -> None:
    """Call Python for Java: what is raised becomes Java's own kind of exception."""
    try:
        call(function, *arguments)
    except jpype.JException:
        raise
    except Exception as raised:
        raise to_java_error(raised) from None


# -- Python's, for Java ----------------------------------------------------------------------------
@JImplements(_RS + "Publisher")
class PythonPublisher:
    """A Python publisher, as Java sees it."""

    def __init__(self, publisher: Any, call: Call) -> None:
        self.publisher = publisher
        self.call = call

    @JOverride
    def subscribe(self, subscriber: Any) -> None:
        java = None if subscriber is None else JavaSubscriber(subscriber, self.call)
        _returning(self.call, self.publisher.subscribe, java)


@JImplements(_RS + "Subscription")
class PythonSubscription:
    """A Python subscription, as Java sees it."""

    def __init__(self, subscription: Any, call: Call) -> None:
        self.subscription = subscription
        self.call = call

    @JOverride
    def request(self, n: Any) -> None:
        _returning(self.call, self.subscription.request, int(n))

    @JOverride
    def cancel(self) -> None:
        _returning(self.call, self.subscription.cancel)


@JImplements(_RS + "Subscriber")
class PythonSubscriber:
    """A Python subscriber, as Java sees it."""

    def __init__(self, subscriber: Any, call: Call) -> None:
        self.subscriber = subscriber
        self.call = call

    @JOverride
    def onSubscribe(self, subscription: Any) -> None:
        java = None if subscription is None else JavaSubscription(subscription)
        _returning(self.call, self.subscriber.on_subscribe, java)

    @JOverride
    def onNext(self, element: Any) -> None:
        _returning(self.call, self.subscriber.on_next, element)

    @JOverride
    def onError(self, error: Any) -> None:
        _returning(self.call, self.subscriber.on_error, to_python_error(error))

    @JOverride
    def onComplete(self) -> None:
        _returning(self.call, self.subscriber.on_complete)


@JImplements(_RS + "Processor")
class PythonProcessor:
    """A Python processor, as Java sees it."""

    def __init__(self, processor: Any, call: Call) -> None:
        self.publisher = self.subscriber = processor
        self.call = call

    # JPype looks for overrides in the class itself only.
    subscribe = PythonPublisher.subscribe
    onSubscribe = PythonSubscriber.onSubscribe
    onNext = PythonSubscriber.onNext
    onError = PythonSubscriber.onError
    onComplete = PythonSubscriber.onComplete


@JImplements(_WHITEBOX + "SubscriberPuppet")
class PythonPuppet:
    """The puppet of a Python subscriber, as the official kit moves it."""

    def __init__(self, puppet: Any, call: Call) -> None:
        self.puppet = puppet
        self.call = call

    @JOverride
    def triggerRequest(self, elements: Any) -> None:
        _returning(self.call, self.puppet.trigger_request, int(elements))

    @JOverride
    def signalCancel(self) -> None:
        _returning(self.call, self.puppet.signal_cancel)


# -- Java's, for Python ----------------------------------------------------------------------------
def _here(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


class JavaPublisher:
    """A Java publisher, as Python sees it."""

    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher

    def subscribe(self, subscriber: Any, /) -> None:
        attach()
        java = None if subscriber is None else PythonSubscriber(subscriber, _here)
        try:
            self._publisher.subscribe(java)
        except jpype.java.lang.NullPointerException as raised:
            raise TypeError(str(raised)) from None


class JavaSubscription:
    """A Java subscription, as Python sees it."""

    def __init__(self, subscription: Any) -> None:
        self._subscription = subscription

    def request(self, n: int, /) -> None:
        attach()
        # Java has no number above, and nothing for what is no number: that is as invalid as 0.
        self._subscription.request(min(n, _LONGEST) if type(n) is int else 0)

    def cancel(self) -> None:
        attach()
        self._subscription.cancel()


class JavaSubscriber:
    """A Java subscriber, as Python sees it."""

    def __init__(self, subscriber: Any, call: Call) -> None:
        self._subscriber = subscriber
        self._call = call

    def on_subscribe(self, subscription: Any, /) -> None:
        attach()
        self._subscriber.onSubscribe(PythonSubscription(subscription, self._call))

    def on_next(self, element: Any, /) -> None:
        attach()
        self._subscriber.onNext(to_java(element))

    def on_error(self, error: BaseException, /) -> None:
        attach()
        self._subscriber.onError(to_java_error(error))

    def on_complete(self) -> None:
        attach()
        self._subscriber.onComplete()


class JavaProbe:
    """The official kit's whitebox probe, as a Python subscriber works it."""

    def __init__(self, probe: Any, call: Call) -> None:
        self._probe = probe
        self._call = call

    def register_on_subscribe(self, puppet: Any, /) -> None:
        attach()
        self._probe.registerOnSubscribe(PythonPuppet(puppet, self._call))

    def register_on_next(self, element: Any, /) -> None:
        attach()
        self._probe.registerOnNext(to_java(element))

    def register_on_error(self, error: BaseException, /) -> None:
        attach()
        self._probe.registerOnError(to_java_error(error))

    def register_on_complete(self) -> None:
        attach()
        self._probe.registerOnComplete()
