"""``subscribe_on``: calls upstream's ``subscribe`` and ``request`` on a resource (an executor).

If upstream is an iterable source, ``subscribe_on`` adds no subscriber: the source itself works on
the resource (see ``engine/pull.py``). This file is for all other publishers. The subscriber below
is signalled on the thread on which the publisher signals.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.core import Wip
from rstreams_fast.runtime.executors import (
    Resource,
    Work,
    check_executor,
    describe_executor,
    process_id,
    resource,
)
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.push import PushSubscription
from rstreams_fast.streams.engine.signals import forked
from rstreams_fast.streams.engine.stages import Stages
from rstreams_fast.streams.engine.trampoline import subscribe_to

__all__ = ["SubscribeOn"]


class SubscribeOn(Boundary):
    one_to_one = True

    def __init__(self, executor: Any) -> None:
        check_executor(executor)
        self.executor = executor

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return _SubscribedOn(upstream, self.executor)

    def resource_above(self) -> Any:
        """Return the executor. An iterable source directly above works on this executor."""
        return self.executor

    def describe(self) -> str:
        return f"subscribe_on({describe_executor(self.executor)}): holds no elements"


class _SubscribedOn:
    def __init__(self, upstream: Publisher[Any], executor: Any) -> None:
        self._upstream = upstream
        self._executor = executor

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        _Calls(resource(self._executor)).start(subscriber, self._upstream)


class _Calls:
    """Makes the calls of upstream's ``subscribe`` and ``request``, on an executor.

    The calls run in the context (``contextvars``) of the subscribing thread. The first request is
    made when upstream's ``subscribe`` has returned, and upstream has called ``on_subscribe``.
    """

    __slots__ = ("_context", "_pid", "_ready", "_resource")

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._context = copy_context()
        self._pid = process_id()
        # ``is_ready``, which uses ``_ready``, is called twice: when upstream calls on_subscribe,
        # and when upstream's ``subscribe`` has returned. Only the second call returns true, so that
        # its caller makes the first request.
        self._ready = Wip()

    def start(self, subscriber: Subscriber[Any], upstream: Publisher[Any]) -> None:
        """Signal ``on_subscribe`` on this thread, and subscribe to ``upstream`` on the executor."""
        subscription = PushSubscription(subscriber, Stages(), early=True, calls=self)
        if subscription.start():
            self._execute(subscription, lambda: self._subscribe(subscription, upstream))

    def _subscribe(self, subscription: PushSubscription, upstream: Publisher[Any]) -> None:
        self.make_call(subscription, lambda: subscribe_to(upstream, subscription))
        if self.is_ready():
            subscription._make_requests()

    def is_ready(self) -> bool:
        return not self._ready.enter()

    def schedule_requests(self, subscription: PushSubscription, /) -> None:
        self._execute(subscription, subscription._make_requests)

    def _execute(self, subscription: PushSubscription, work: Work) -> None:
        try:
            if process_id() != self._pid:
                raise forked()
            self._resource.execute(work, subscription._fail)
        except RecursionError:
            # The stack is full. Only an outer caller has room on the stack to report the error.
            raise
        except Exception as refused:
            subscription.end_with(refused)  # end_with() has no effect if the stream is over

    def make_call(self, subscription: PushSubscription, call: Callable[[], object], /) -> None:
        try:
            # A ``Context`` must not run code on two threads at the same time. This rule is kept:
            # only one thread at a time calls upstream.
            self._context.run(call)
        except BaseException as leaving:  # signal the error here: no caller signals it
            subscription._fail(leaving)
            raise

    def close(self) -> None:
        self._resource.close()
