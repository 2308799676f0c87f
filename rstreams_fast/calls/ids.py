"""``call_id``: a stable id of a call, which a service can take as an idempotency key.

A stage is a step of a Spark job that calls a user's function, such as ``rs.lookup``.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar, Token
from typing import Any, Final

from rstreams_fast.calls.functions import unwrap
from rstreams_fast.calls.keys import KeyDigest, own_copy

__all__ = [
    "call_id",
    "identified_call",
    "keyed",
    "names_call_id",
    "reset_call",
    "set_call",
    "set_key",
    "set_run_digest",
]

MOST_SEARCHED: Final = 1000
"""The maximum number of objects (functions, classes and code) that ``names_call_id`` searches."""

DigestOf = Callable[[tuple[Any, ...]], bytes]

_run_digest: Final[ContextVar[KeyDigest | None]] = ContextVar("digest_of_run", default=None)
"""While a stage calls its function: makes the digest of a key. Otherwise ``None``."""

_key: Final[ContextVar[tuple[Any, ...] | None]] = ContextVar("key_of_call", default=None)
"""While a stage calls its function: the key of the call; ``None`` with a list of keys."""

_function_call: Final[ContextVar[tuple[DigestOf, Callable[[], Any]] | None]] = ContextVar(
    "call_of_function", default=None
)
"""While a function with a policy is called: a pair of functions. The first makes the digest of a
key, the second returns the key of the call."""

Call = Callable[..., Awaitable[Any]]


def call_id(*key: Any) -> str:
    """Return the id of the current call, for a service that takes an idempotency key.

    The function of a stage and a function with a ``Policy`` may call ``call_id``. The id is a text
    of 32 hexadecimal digits: a digest of the function's name, the version of its ``Journal`` and
    the key of the call. So the id is the same in each attempt, task and job. It is made of the
    values at the start of the call, even if the function has changed a list in its arguments. In a
    sink of ``write`` the id also depends on ``job=``; without ``job=`` each write gives new ids.

    A stage provides ids only if the name ``call_id`` is in the code of its function, or of a
    function that this code names. Other stages do not spend time on ids.

    Args:
        *key: In a function that gets a list of keys: one key of the list. Default: the key of the
            call.

    Raises:
        RuntimeError: Neither a function of a stage nor a function with a ``Policy`` is running; or
            the call has a list of keys, and ``key`` is missing.
        TypeError: The key is not made of plain values; ``Policy(key=...)`` can make another key.
    """
    # With several key columns the caller may pass a key as one tuple, as it is in the list.
    if len(key) == 1 and type(key[0]) is tuple:
        (key,) = key
    if (called := _function_call.get()) is not None:
        digest_of, make = called
        return digest_of(key or make()).hex()
    of_run = _run_digest.get()
    if of_run is None:
        raise RuntimeError("call_id is for the function of a stage, or one with a Policy")
    wanted = key or _key.get()
    if wanted is None:
        raise RuntimeError(
            "this call is of several keys: give call_id the one that is meant; or the function of "
            "the stage does not name call_id, but calls what does: give it the key there"
        )
    return of_run(wanted).hex()


def set_run_digest(digest_of: KeyDigest) -> None:
    """Make ``call_id`` use ``digest_of`` in this context, and in later copies of the context."""
    _run_digest.set(digest_of)


set_key: Final = _key.set
"""Store the key of the call that runs in the current context, for ``call_id``."""


def keyed(fn: Call) -> Call:
    """Return a wrapper of ``fn`` that stores the key of each call, for ``call_id``.

    The caller must run each call in its own context. Otherwise ``call_id`` would use the key of
    another call.
    """

    async def call(*key: Any) -> Any:
        set_key(key)
        return await fn(*own_copy(key))

    return call


def set_call(digest_of: DigestOf, key_of: Callable[[], Any]) -> Token[Any]:
    """Make ``call_id`` use ``digest_of``, and the key ``key_of()`` if ``call_id`` gets no key.

    This replaces the settings of a stage, until ``reset_call`` is called with the returned token.
    """
    return _function_call.set((digest_of, key_of))


def reset_call(token: Token[Any]) -> None:
    try:
        _function_call.reset(token)
    except ValueError:
        # The garbage collector closes an unfinished call in another context: nothing is set there.
        return


@contextlib.contextmanager
def identified_call(digest_of: DigestOf, key_of: Callable[[], Any]) -> Iterator[None]:
    """Call ``set_call`` before the ``with`` block, and ``reset_call`` after the block."""
    token = set_call(digest_of, key_of)
    try:
        yield
    finally:
        reset_call(token)


def names_call_id(fn: Callable[..., Any]) -> bool:
    """Return whether the name ``call_id`` is in ``fn``, or in a function that ``fn`` refers to."""
    return any("call_id" in code.co_names + code.co_freevars for code in _code_objects(unwrap(fn)))


def _code_objects(fn: Any) -> Iterator[types.CodeType]:
    left, seen = [fn], set[int]()
    while left and len(seen) < MOST_SEARCHED:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, types.MethodType):
            left += [one.__func__, type(one.__self__)]
        elif isinstance(one, types.CodeType):
            yield one
            left += one.co_consts
        elif isinstance(one, types.FunctionType):
            left.append(one.__code__)
            left += _objects_named_in(one)
        elif isinstance(one, type):
            left += [part for part in vars(one).values() if isinstance(part, types.FunctionType)]
        elif isinstance(one, functools.partial):
            left.append(one.func)
        elif callable(one) and isinstance(getattr(type(one), "__call__", None), types.FunctionType):  # noqa: B004
            left.append(type(one))


def _objects_named_in(fn: types.FunctionType) -> Iterator[Any]:
    """Yield the globals, attributes of modules, and closure variables that ``fn`` refers to."""
    names, own = fn.__code__.co_names, fn.__globals__
    found = [own[name] for name in names if name in own]
    for cell in fn.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # the closure variable has no value yet
            continue
    for one in found:
        if isinstance(one, types.ModuleType):
            yield from (vars(one)[name] for name in names if name in vars(one))
        else:
            yield one
