"""Subscribing, and asking for elements, on a resource instead of on the caller.

Directly above a source that is pulled this is no layer at all: the source's drain itself runs on
the resource (see ``pull``). Here is the form for any other publisher.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from rstreams_fast.api import Publisher, Subscriber, Subscription
from rstreams_fast.core import DemandCounter
from rstreams_fast.runtime.executors import (
    Resource,
    check_executor,
    describe_executor,
    process_id,
    resource,
)
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.push import PushSubscription
from rstreams_fast.streams.engine.signals import forked
from rstreams_fast.streams.engine.stages import Stages
from rstreams_fast.streams.engine.subscribing import subscribe_to

__all__ = ["SubscribeOn"]


class SubscribeOn(Boundary):
    """The boundary of ``Stream.subscribe_on``."""

    one_to_one = True

    def __init__(self, executor: Any) -> None:
        check_executor(executor)
        self.executor = executor

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return _SubscribedOn(upstream, self.executor)

    def resource_above(self) -> Any:
        """The executor: a source directly above is pulled there, without a layer of its own."""
        return self.executor

    def describe(self) -> str:
        return f"subscribe_on({describe_executor(self.executor)}): holds no elements"


class _SubscribedOn:
    def __init__(self, upstream: Publisher[Any], executor: Any) -> None:
        self._upstream = upstream
        self._executor = executor

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        _Subscription(subscriber, resource(self._executor)).start(self._upstream)


class _Subscription(PushSubscription):
    """Calls upstream on the resource, and signals downstream wherever upstream signals."""

    __slots__ = ("_calls", "_ready")

    def __init__(self, subscriber: Subscriber[Any], calls: Resource) -> None:
        super().__init__(subscriber, Stages())
        self.turns = None  # the resource asks
        self._calls = calls
        self._context = copy_context()
        self._ready = DemandCounter()  # on_subscribe came, and subscribe returned: then it asks

    def start(self, upstream: Publisher[Any]) -> None:
        """Introduce ourselves here, subscribe there."""
        if self._introduce():
            self._go()
            self._call(lambda: self._subscribe(upstream))

    def _subscribe(self, upstream: Publisher[Any]) -> None:
        self._in_context(lambda: subscribe_to(upstream, self))
        if self._ready.request(1) == 1:
            self._ask_now()

    def on_subscribe(self, subscription: Subscription, /) -> None:
        """Take the first subscription, and ask for what has been asked of us meanwhile."""
        if self._upstream.attach(subscription) and self._ready.request(1) == 1:
            self._call(self._ask_now)

    def _introduce_late(self) -> None:
        """There is nobody to be introduced to: ``start`` did that."""

    def _ask(self, n: int) -> None:
        self._pending.request(n)
        if self._asking.enter():
            self._call(self._ask_now)

    def _request(self, n: int) -> None:
        self._in_context(lambda: super(_Subscription, self)._request(n))

    def _in_context(self, call: Callable[[], object]) -> None:
        # One call at a time: it is left before _asking is, so no two threads are in it.
        context = self._context
        if context is not None:
            try:
                context.run(call)
            except BaseException as leaving:  # through a thread where nobody waits for it
                self._fail(leaving)
                raise

    def _call(self, work: Callable[[], object]) -> None:
        try:
            if process_id() != self._pid:
                raise forked()
            self._calls.execute(work, self._fail)
        except RecursionError:  # to where the stack has room again
            raise
        except Exception as refused:
            if self._demand.value >= 0:  # else it is over, and what would work is closed
                self._fail(refused)

    def _drop_references(self) -> None:
        super()._drop_references()
        self._calls.close()
