"""``Policy``: rules for the calls of a function, in any Python program or Spark stage."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import datetime as dt
import functools
import importlib
import inspect
import os
import sys
import threading
import types
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from decimal import Decimal
from typing import Any, Final, ParamSpec, TypeVar, cast

from rstreams_fast._checks import refuse_coroutine
from rstreams_fast.calls.counts import CallCounts, FunctionCounts
from rstreams_fast.calls.engine import Surroundings, surrounded
from rstreams_fast.calls.functions import is_found_by_name, is_in_its_module, unwrap
from rstreams_fast.calls.ids import names_call_id, reset_call, set_call
from rstreams_fast.calls.journal.functions import FunctionJournal
from rstreams_fast.calls.keys import KeyDigest, Keywords, checked_key, may_change, own_copy
from rstreams_fast.calls.limits.blocking import BlockingGate, TimedGate
from rstreams_fast.calls.limits.nesting import begin_holding
from rstreams_fast.calls.limits.permits import PermitGate
from rstreams_fast.calls.memory.cache import CachedResults
from rstreams_fast.calls.settings import CallSettings, PolicySettings
from rstreams_fast.runtime.executors import process_id

__all__ = ["Policy", "PolicyFunction"]

P = ParamSpec("P")
R = TypeVar("R")

_EXACT: Final = frozenset({bool, bytes, int, str, type(None)})
"""Types for which ``==`` finds every difference between two values of the same type."""

_INEXACT: Final = (tuple, frozenset, float, complex, Decimal, dt.datetime, dt.time)
"""Types for which equal values of the same type may differ, such as 0.0 and -0.0."""
_RUNS_LATER: Final = (Coroutine, asyncio.Future)

_Call = Callable[[tuple[Any, ...], dict[str, Any]], Coroutine[Any, Any, Any]]


class Policy(PolicySettings):
    """Rules for each call of a function: time-outs, further attempts, limits, caches.

    ``Policy(...)(fn)`` returns a function with the signature of ``fn``. This function can be called
    in an asyncio program, in a stream, as a UDF, and in a Spark stage. A Spark stage makes the
    calls itself, under the same policy. A policy may decorate any number of functions and methods.
    Threads may share a policy.

    The policy of a plain (not ``async``) function may have neither ``timeout`` nor ``deadline``. A
    call of a plain function blocks its thread while it waits for a permit, or for its next attempt.
    So call plain functions on threads, not on an event loop.

    ```python
    import rstreams_fast as rsf


    @rsf.Policy(timeout=2.0, retry=rsf.Retry(3), limit=rsf.Limit("models", concurrency=32))
    async def model_of(tailnum):
        return tailnum.lower()
    ```

    The order from outside to inside is: ``cache``, ``journal``, ``deadline``; then, for each
    attempt that ``retry`` makes, ``circuit``, ``budget``, ``limit``, ``timeout`` and the function.

    Args:
        timeout: Seconds that one attempt of an async function may take, then ``TimeoutError``.
            Default: no time-out.
        deadline: Seconds that a call of an async function may take, including all its attempts and
            all its waits; then ``TimeoutError``. Default: no deadline.
        retry: A ``Retry``: when a failed call is repeated. Default: one attempt.
        limit: A ``Limit`` of concurrent calls, of calls a second, or of units. All functions with a
            limit of the same name share the limit. The ``timeout`` of an attempt begins when the
            attempt has its permit. A call that waits for its next attempt holds no permit.
        circuit: A ``Circuit``, which makes no calls for a while after too many failed attempts.
        budget: A ``Budget`` of attempts, or of the units that attempts spend. When the budget is
            spent, calls fail immediately with ``BudgetSpentError``.
        cache: A ``Cache``, in which the process keeps results for later calls.
        journal: A ``Journal``, which stores results even after the process has ended. A call looks
            for its result in ``cache`` first, then in ``journal``.
        patience: The maximum total of seconds that a call waits because its function raised
            ``RetryAfter``. This exception is no failure: it uses up neither retries nor the retry
            budget, and does not open the circuit. A ``RetryAfter`` also stops all calls under the
            ``limit``, for at most ``patience`` seconds, and never for more than 300. With 0 the
            first ``RetryAfter`` is a failure of the call, and stops the calls under the ``limit``
            for at most 300 seconds. Default: 300.
        key: A function that makes a hashable key from a call's arguments. Cache and journal treat
            calls with the same key as the same call. Default: the arguments are the key. If an
            argument is a client, ``key`` must leave it out. ``lookup``, ``enrich`` and sinks do not
            use this argument: there the key columns are the key, and in a sink all columns.

    Raises:
        TypeError: An argument has the wrong type; the message names it.
        ValueError: An argument has a wrong value; the message names it.
    """

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        """Return ``fn`` with this policy.

        Put ``@staticmethod`` and ``@classmethod`` above the policy.

        Raises:
            TypeError: ``fn`` cannot be called, or is a ``staticmethod`` or a ``classmethod``.
            ValueError: An argument of the policy does not suit ``fn``, such as ``timeout`` for a
                plain function: a plain function runs on a thread, which cannot be stopped.
        """
        if isinstance(fn, staticmethod | classmethod):  # ``__get__`` would pass the instance to fn
            name = type(fn).__name__
            raise TypeError(f"fn must be a function, got a {name}: put @{name} above the policy")
        settings = CallSettings(fn, self)
        kind: Any = _AsyncFunction if settings.is_async else _PlainFunction
        function: Callable[P, R] = kind(settings)
        return function


class PolicyFunction:
    """A function or method with its policy: the result of ``Policy(...)(fn)``.

    A pickle of this object contains the id of the function. With this id, a cache in another
    process finds the results of the function.
    """

    def __init__(self, settings: CallSettings) -> None:
        fn = unwrap(settings.fn)  # a partial object has no name: take the name of its function
        functools.update_wrapper(cast(Any, self), fn, updated=())
        self.__wrapped__ = settings.fn
        self.__qualname__: str = getattr(fn, "__qualname__", settings.label)
        if getattr(fn, "__isabstractmethod__", False):
            self.__isabstractmethod__ = True
        self._settings: Final = settings
        self._counts: Final = FunctionCounts(settings.label)
        journal = settings.policy.journal
        self._digest_of: Final = KeyDigest(settings.label, journal.version if journal else "")
        _warn_without_daemon()
        if self.__module__ == "__main__":
            _let_children_find_names()

    @property
    def counts(self) -> CallCounts:
        """A snapshot of the counts of this object's calls in this process.

        Spark stages make calls without this object, and count them in their ``metrics``. Any thread
        may read this property.
        """
        return self._counts.snapshot()

    @property
    def fn(self) -> Callable[..., Any]:
        """The function without its policy."""
        return self._settings.fn

    @property
    def policy(self) -> PolicySettings:
        """The policy of the function."""
        return self._settings.policy

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        # Bind only what Python would bind without the policy: no builtin, and no partial object.
        bind: Any = getattr(type(self.fn), "__get__", None)
        if instance is None or bind is None or bind(self.fn, instance, owner) is self.fn:
            return self
        return types.MethodType(cast(Any, self), instance)

    def __reduce__(self) -> Any:
        # If another process can import this object, pickle only the object's name and policy.
        if is_found_by_name(self):
            return self._reduced_to_name()
        # The settings contain the id with which a cache finds the results of the function.
        return type(self), (self._settings,)

    def _reduced_to_name(self) -> Any:
        # Leave out ``key`` and ``weigh``, which ``_function_named`` takes from the imported object:
        # they may be lambdas, and most picklers refuse lambdas.
        policy, limit = self.policy, copy.copy(self.policy.limit)
        if limit is not None:
            object.__setattr__(limit, "weigh", None)
        policy = dataclasses.replace(policy, limit=limit, key=None)
        called_id = self._settings.called_id
        return _function_named, (policy, self.__module__, self.__qualname__, called_id)

    def __repr__(self) -> str:
        return f"<{self._settings.label} with a policy>"

    def _wrap(
        self,
        fn: _Call,
        loop: asyncio.AbstractEventLoop | None,
        gate: PermitGate | TimedGate | None,
        counts: CallCounts,
        journal: FunctionJournal | None,
    ) -> _Call:
        """Return a wrapper of ``fn`` with the policy. Without a ``loop`` no call may suspend."""
        cache, cached = self.policy.cache, None
        if cache is not None:
            cached = CachedResults(cache, self._settings.called_id, (), counts)
        limit = self.policy.limit
        weigh = None if limit is None else lambda args: limit.weights(*args)
        surroundings = Surroundings(journal=journal, cache=cached, key_of=self._key_of, weigh=weigh)
        return cast(
            _Call,
            surrounded(
                fn,
                self._settings,
                surroundings,
                loop=loop,
                counts=counts,
                gate=gate,
                wrap_unanswered=lambda call: self._counted(call, counts),
            ),
        )

    def _counted(self, fn: Callable[..., Awaitable[Any]], counts: CallCounts) -> _Call:
        """Return a wrapper of ``fn`` that counts calls and failures, and provides ``call_id``."""
        digest_of, key_of = self._digest_of, self._key_at_start
        limit, label = self.policy.limit, self._settings.label

        async def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            holder = begin_holding(limit, label)
            try:
                counts.calls += 1
                token = set_call(digest_of, key_of(args, kwargs))
                try:
                    result = await fn(args, kwargs)
                except Exception as error:
                    counts.count_failure(error)
                    raise
                finally:
                    reset_call(token)
            finally:
                if holder is not None:
                    holder.is_over = True  # a signal handler may raise before ``end`` sets this
                    holder.end()
            counts.count_success()
            return result

        return call

    @functools.cached_property
    def _names_call_id(self) -> bool:
        return names_call_id(self.fn)

    def _key_at_start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
        """Return a function that returns the call's key, made of the arguments as they are now.

        ``call_id`` needs this, because the call may later change a list in its arguments.
        """
        make = functools.partial(self._lasting_key, args, kwargs)
        if not self._names_call_id or not may_change((args, *kwargs.values())):
            return make
        try:
            key = own_copy(make())
        except Exception:
            return make  # ``make`` raises the same error if the function calls ``call_id``
        return lambda: key

    def _journal(self, counts: CallCounts) -> FunctionJournal | None:
        journal = self.policy.journal
        if journal is None:
            return None
        return FunctionJournal(journal, self._settings.label, self._lasting_key, counts, self)

    def _key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        policy = self.policy
        if policy.outlives:
            return self._lasting_key(args, kwargs)
        if policy.key is not None:
            key = policy.key(*args, **kwargs)
            try:
                hash(key)
            except TypeError as refused:
                raise TypeError(f"Policy(key) must return a hashable value: {refused}") from None
            return key, _types((key,))
        names = tuple(sorted(kwargs)) if kwargs else ()
        values = (*args, *[kwargs[name] for name in names]) if names else args
        # The key includes the types of the values, because 1, 1.0 and True are equal.
        return values, _types(values), names

    def _lasting_key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return the key of a call for a journal, for a cache of several processes, or ``call_id``.

        Raises ``TypeError`` if the key is not made of plain values.
        """
        if self.policy.key is not None:
            key: tuple[Any, ...] = (self.policy.key(*args, **kwargs),)
        elif kwargs:
            key = (*args, Keywords(kwargs))
        elif len(args) == 1 and isinstance(args[0], tuple):
            key = (args,)  # otherwise fn((1, 2)) and fn(1, 2) would have the same digest
        else:
            key = args
        return checked_key(key, self._settings.label)


def _types(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the type of each value, with details that ``==`` ignores, such as the sign of zero."""
    return tuple(
        [
            kind
            if (kind := type(value)) in _EXACT
            or (kind is float and value)
            or not isinstance(value, _INEXACT)
            else _type(value)
            for value in values
        ]
    )


def _type(value: Any) -> Any:
    kind = type(value)
    if isinstance(value, tuple):
        return kind, _types(value)
    if isinstance(value, frozenset):
        items = list(value)
        return kind, frozenset(zip(items, _types(items), strict=True))
    if isinstance(value, dt.datetime):
        return kind, value.fold
    if isinstance(value, dt.time):
        return kind, value.fold, value.tzinfo
    return kind, repr(value)  # 0.0 equals -0.0, and Decimal("1") equals Decimal("1.0")


def _function_named(policy: PolicySettings, module: str, name: str, called_id: str) -> Any:
    """Unpickle a function with a policy: import ``name`` from ``module``; set ``policy`` and id."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    own: PolicySettings = found.policy
    if policy.limit is not None and own.limit is not None:
        object.__setattr__(policy.limit, "weigh", own.limit.weigh)
    settings = CallSettings(found.fn, dataclasses.replace(policy, key=own.key))
    object.__setattr__(settings, "called_id", called_id)
    return type(found)(settings)


@functools.cache
def _let_children_find_names() -> None:
    """Make ``multiprocessing`` pickle functions with a policy in ``__main__`` by their names.

    The child processes of ``multiprocessing`` and ``ProcessPoolExecutor`` have the parent's
    ``__main__`` module. Other processes do not have it, so other picklers must not use the names.
    """
    from multiprocessing.reduction import ForkingPickler

    for kind in (_AsyncFunction, _PlainFunction):
        ForkingPickler.register(kind, _reduced_for_child)


def _reduced_for_child(function: PolicyFunction) -> Any:
    named = is_in_its_module(function)
    return function._reduced_to_name() if named else function.__reduce__()


@functools.cache
def _warn_without_daemon() -> None:
    """Warn once if ``RSTREAMS_FAST_UDF_*`` is set, but Spark has started this worker directly.

    Only the workers of the daemon ``rstreams_fast.spark.daemon`` use these variables.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    variables = sorted(name for name in os.environ if name.startswith("RSTREAMS_FAST_UDF_"))
    if variables and getattr(spec, "name", None) == "pyspark.worker":
        print(
            f"rstreams_fast: {variables[0]} has no effect, calls do not overlap: Spark started "
            "this worker without a daemon (spark.python.use.daemon=false)",
            file=sys.stderr,
        )


_Calls = AsyncGenerator[tuple[_Call, PermitGate | None]]


class _AsyncFunction(PolicyFunction):
    _latest: tuple[asyncio.AbstractEventLoop, _Call, PermitGate | None, _Calls] | None = None
    """The loop of the latest call, a function that makes calls on this loop, the ``PermitGate`` of
    the limit, and a generator. The loop closes the generator when the loop ends."""

    _kept: _Call | None = None
    """The newest function that makes calls. Even after its loop has ended, this reference keeps the
    results of the cache, the state of the circuit and the retry budget alive."""

    _loop_in_clean_up: weakref.ref[asyncio.AbstractEventLoop] | None = None
    """The latest loop that has closed its generators. Calls may still be made on this loop."""

    def __init__(self, settings: CallSettings) -> None:
        super().__init__(settings)
        # Mark this object as a coroutine function, so that web frameworks await its calls.
        if sys.version_info >= (3, 12):
            inspect.markcoroutinefunction(self)
        else:
            self._is_coroutine = getattr(asyncio.coroutines, "_is_coroutine", None)

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        loop, latest = asyncio.get_running_loop(), self._latest
        if latest is None or latest[0] is not loop:
            generator, before = self._calls_on_loop(loop), latest
            latest = self._latest = (loop, *await self._begin(loop, generator), generator)
            # A loop that was closed without ``shutdown_asyncgens`` has left its generator open.
            if before is not None and before[0].is_closed():
                # RuntimeError: another thread is closing the same generator now.
                with contextlib.suppress(RuntimeError):
                    await before[3].aclose()
        elif latest[2] is not None and latest[2].has_failed:
            # The gate has failed. Try a new gate: the cause, such as a missing folder, may be gone.
            latest = self._latest = (loop, *await anext(latest[3]), latest[3])
        return await latest[1](args, kwargs)

    def _begin(
        self, loop: asyncio.AbstractEventLoop, generator: _Calls
    ) -> Awaitable[tuple[_Call, PermitGate | None]]:
        if self._loop_in_clean_up is None or self._loop_in_clean_up() is not loop:
            return anext(generator)
        # The loop has already closed its generators. asyncio's hook would warn of a new generator.
        hook = sys.get_asyncgen_hooks().firstiter
        sys.set_asyncgen_hooks(firstiter=None)
        try:
            return anext(generator)
        finally:
            sys.set_asyncgen_hooks(firstiter=hook)

    async def _calls_on_loop(self, loop: asyncio.AbstractEventLoop) -> _Calls:
        # This is a generator, because asyncio closes generators when the loop ends: so the
        # ``finally`` block runs.
        fn, limit, gate, call = self.fn, self.policy.limit, None, None
        counts = self._counts.begin(loop)
        journal = self._journal(counts)
        try:
            while True:  # makes a new gate each time the previous gate has failed
                gate = None if limit is None else PermitGate(limit, loop)
                if gate is not None:
                    gate.waits = counts.limit_waits
                call = self._kept = self._wrap(
                    lambda args, kwargs: fn(*args, **kwargs), loop, gate, counts, journal
                )
                yield call, gate
        except GeneratorExit:
            if self._latest is not None and self._latest[1] is call:
                self._loop_in_clean_up = weakref.ref(loop)
            raise
        finally:
            if self._latest is not None and self._latest[1] is call:
                self._latest = None
            # Calls that are still running on an open loop return their permits themselves.
            if gate is not None and (loop.is_closed() or not gate.is_in_use):
                gate.close()
            self._counts.end(counts)
            if journal is not None:
                # If ``loop`` is closed, this code runs on another loop: use the running loop.
                await asyncio.get_running_loop().run_in_executor(None, journal.end)


class _PlainFunction(PolicyFunction):
    _latest: tuple[list[CallCounts] | None, int, _Call] | None = None
    """The newest of the states that threads have. Even after its thread has ended, this reference
    keeps the results of the cache, the state of the circuit and the retry budget alive."""

    def __init__(self, settings: CallSettings) -> None:
        super().__init__(settings)
        limit = settings.policy.limit
        self._gate = None if limit is None else BlockingGate(limit)
        self._thread_state = threading.local()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        ambient, state = CallCounts.ambient, getattr(self._thread_state, "calls", None)
        # A new Spark task needs new counts. A forked child process needs its own stores and locks.
        if state is None or state[0] is not ambient or state[1] != process_id():
            counts = self._counts.begin()
            gate = None if self._gate is None else TimedGate(self._gate, counts.limit_waits)
            state = self._latest = self._thread_state.calls = (
                ambient,
                process_id(),
                self._wrap(self._call, None, gate, counts, self._journal(counts)),
            )
        try:
            state[2](args, kwargs).send(None)
        except StopIteration as stop:
            return stop.value
        raise RuntimeError(f"a call of {self._settings.label} was to block, and suspended")

    async def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self.fn(*args, **kwargs)
        refuse_coroutine("Policy(fn)", self.fn, result, "; make it 'async def' itself")
        if isinstance(result, _RUNS_LATER):  # an asyncio task, say, which runs after this call
            if isinstance(result, Coroutine):
                result.close()
            raise TypeError(
                f"Policy(fn): {self._settings.label} returned a {type(result).__name__}, whose "
                "call would run without the policy: surround an 'async def' that awaits it"
            )
        # A context manager that ``contextlib.contextmanager`` made has a generator (``gen``). The
        # body of this generator, too, would run after this call.
        made = getattr(result, "gen", None) if type(result).__module__ == "contextlib" else result
        if isinstance(made, types.GeneratorType | types.AsyncGeneratorType):
            raise TypeError(
                f"Policy(fn): {self._settings.label} is a generator, whose body would run "
                "without the policy: return a list, or surround the function that it calls"
            )
        return result
