"""``call_id``: the id of a call, for a service that takes an idempotency key."""

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
"""The most functions that ``names_call_id`` looks into."""

DigestOf = Callable[[tuple[Any, ...]], bytes]

_run_digest: Final[ContextVar[KeyDigest | None]] = ContextVar("digest_of_run", default=None)
"""Makes the digests of the keys, for the calls of a stage."""

_key: Final[ContextVar[tuple[Any, ...] | None]] = ContextVar("key_of_call", default=None)
"""The key of the present call of a stage; ``None`` if the call has several keys."""

_function_call: Final[ContextVar[tuple[DigestOf, Callable[[], Any]] | None]] = ContextVar(
    "call_of_function", default=None
)
"""For the call of a function with a policy: a function that makes the digest of a key, and a
function that makes the key of the call."""

Call = Callable[..., Awaitable[Any]]


def call_id(*key: Any) -> str:
    """Return the id of the present call, for a service that takes an idempotency key.

    The function of a stage and a function with a ``Policy`` may call it. The id has 32 hexadecimal
    digits, made of the function's name, the version of its ``Journal`` and the key of the call: it
    is the same in each attempt, task and job. The key has the values with which the call began,
    even if the function has changed a list.

    A stage provides ids only if the name ``call_id`` is in the code of its function, or of a
    function that this code names. Other stages do not spend time on ids.

    Args:
        *key: One key of the list, in a function that gets lists of keys. Default: the key of the
            call.

    Raises:
        RuntimeError: No such call is running, or the call has several keys and ``key`` is missing.
        TypeError: The key is not made of plain values; ``Policy(key=...)`` can make another key.
    """
    # With several key columns an item of the list is a tuple.
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
    """Make ``call_id`` use ``digest_of`` in all calls that run in copies of the present context."""
    _run_digest.set(digest_of)


set_key: Final = _key.set
"""Set the key of the call that runs in the present context."""


def keyed(fn: Call) -> Call:
    """Return a wrapper of ``fn`` that sets the key of each call, for ``call_id``.

    Each call needs a context of its own: otherwise it would see the key of another call.
    """

    async def call(*key: Any) -> Any:
        set_key(key)
        return await fn(*own_copy(key))

    return call


def set_call(digest_of: DigestOf, key_of: Callable[[], Any]) -> Token[Any]:
    """Make ``call_id`` use ``digest_of``. If ``call_id`` gets no key, it takes ``key_of()``.

    Until ``reset_call``, this setting applies instead of the setting of the stage.
    """
    return _function_call.set((digest_of, key_of))


def reset_call(token: Token[Any]) -> None:
    try:
        _function_call.reset(token)
    except ValueError:
        # The garbage collector ended the call in another context: there is nothing to undo.
        return


@contextlib.contextmanager
def identified_call(digest_of: DigestOf, key_of: Callable[[], Any]) -> Iterator[None]:
    """Apply ``set_call`` to the block: call ``reset_call`` at its end."""
    token = set_call(digest_of, key_of)
    try:
        yield
    finally:
        reset_call(token)


def names_call_id(fn: Callable[..., Any]) -> bool:
    """Return whether ``call_id`` is in the code of ``fn``, or of a function it refers to."""
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
    """Yield the objects that the code of ``fn`` names: globals, attributes of modules, closures."""
    names, own = fn.__code__.co_names, fn.__globals__
    found = [own[name] for name in names if name in own]
    for cell in fn.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # the closure's variable has no value yet
            continue
    for one in found:
        if isinstance(one, types.ModuleType):
            yield from (vars(one)[name] for name in names if name in vars(one))
        else:
            yield one
