"""Opens and closes a partition's client: the context manager of the user's argument ``using``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, NoReturn

from rstreams_fast.calls.errors import with_note
from rstreams_fast.calls.functions import label_of

__all__ = ["CallsEnded", "Client", "PlainClient"]


class CallsEnded(asyncio.Future[None]):
    """A future that is done when all calls of the partition have ended.

    If the task that awaits this future is cancelled, ``on_cancel`` is called, and the task gets the
    ``CancelledError`` only after the calls have ended.
    """

    def __init__(self, on_cancel: Callable[[], object], *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._on_cancel = on_cancel

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ARG002
        self._on_cancel()
        return False  # so asyncio raises the CancelledError only when this future is done


class Client:
    """Enters and leaves the client (the context manager of ``using``) on an event loop.

    The same asyncio task must call ``open`` and ``close``: task groups, time-outs and the tokens of
    context variables belong to the task in which they were made.
    """

    def __init__(self, factory: Callable[[], Any] | None) -> None:
        self._factory = factory
        self._manager: Any = None
        self._is_async = False

    async def open(self) -> tuple[Any, ...]:
        """Enter the context manager. Return a tuple with its value; ``()`` without ``using``."""
        factory = self._factory
        if factory is None:
            return ()
        try:
            manager = factory()
            kind = type(manager)
            self._is_async = hasattr(kind, "__aenter__") and hasattr(kind, "__aexit__")
            if self._is_async:
                opened = await manager.__aenter__()
            elif hasattr(kind, "__enter__") and hasattr(kind, "__exit__"):
                opened = manager.__enter__()
            else:
                raise TypeError(
                    f"using: {label_of(factory)} gave {kind.__name__}, "
                    "which is no (async) context manager"
                )
        except Exception as raised:
            _raise_noted(raised)
        self._manager = manager
        return (opened,)

    async def close(self, failure: BaseException | None) -> None:
        """Leave the context manager, if it was entered. It cannot suppress ``failure``."""
        manager, self._manager = self._manager, None
        if manager is None:
            return
        # Do not use contextlib.ExitStack: it sets the attribute __context__ of an exception, which
        # some exceptions, such as frozen dataclasses, refuse.
        exc_info: tuple[Any, ...] = (None, None, None)
        if failure is not None:
            exc_info = (type(failure), failure, failure.__traceback__)
        try:
            if self._is_async:
                await manager.__aexit__(*exc_info)
            else:
                manager.__exit__(*exc_info)
        except Exception as raised:
            _raise_noted(raised)


class PlainClient:
    """Enters and leaves the client (the context manager of ``using``) on the main thread.

    ``__enter__`` and ``__exit__`` of the client run in the same ``contextvars`` context. So
    ``__exit__`` can reset a context variable that ``__enter__`` has set.
    """

    def __init__(self, factory: Callable[[], Any] | None) -> None:
        self._factory = factory
        self._manager: Any = None
        self.context: Context = copy_context()
        """The ``contextvars`` context of the threads that call the user's function."""
        self.opened: tuple[Any, ...] = ()

    def __enter__(self) -> None:
        if self._factory is not None:
            self.context.run(self._open, self._factory)

    def _open(self, factory: Callable[[], Any]) -> None:
        manager = factory()
        kind = type(manager)
        if not (hasattr(kind, "__enter__") and hasattr(kind, "__exit__")):
            raise TypeError(
                f"using: {label_of(factory)} gave {kind.__name__}, which is no context "
                "manager; an async one takes an async function"
            )
        try:
            self.opened = (manager.__enter__(),)
        except BaseException as raised:
            _raise_noted(raised)
        self._manager = manager

    def __exit__(self, *raised: object) -> None:
        """Leave the context manager. It gets the exception of the block, but cannot suppress it."""
        if self._manager is not None:
            try:
                self.context.run(self._manager.__exit__, *raised)
            except BaseException as failure:
                if failure is raised[1]:
                    return
                _raise_noted(failure)


def _raise_noted(error: BaseException) -> NoReturn:
    raise with_note(error, "raised by the context manager given by 'using'")
