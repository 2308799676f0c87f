"""``on_error_resume``: subscribes to another publisher when upstream has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rstreams_fast._checks import describe_callable
from rstreams_fast.api import Publisher
from rstreams_fast.streams.engine.arbiter import ArbiterBoundary, SubscriptionArbiter
from rstreams_fast.streams.engine.fan_in import Ended

__all__ = ["OnErrorResume"]

ErrorTypes = type[BaseException] | tuple[type[BaseException], ...]


class OnErrorResume(ArbiterBoundary):
    """After an error of upstream, subscribes to another publisher.

    ``name`` is the name of the operator: ``on_error_resume`` or ``on_error_return``.
    """

    def __init__(self, fn: Callable[[Any], Publisher[Any]], on: ErrorTypes, name: str) -> None:
        self.fn = fn
        self.name = name
        self.on = (on,) if isinstance(on, type) else on
        if not isinstance(self.on, tuple) or not all(
            isinstance(kind, type) and issubclass(kind, BaseException) for kind in self.on
        ):
            raise TypeError(
                f"{name}(on): on must be an exception type or a tuple of them, got {on!r}"
            )

    def prepare(self, arbiter: SubscriptionArbiter, upstream: Publisher[Any]) -> None:  # noqa: ARG002
        arbiter.chooser = _Fallback(self)

    def describe(self) -> str:
        kinds = ", ".join(kind.__qualname__ for kind in self.on)
        return f"{self.name}({describe_callable(self.fn)}) on {kinds}: holds no elements"


class _Fallback:
    """Chooses the publisher that ``fn(error)`` returns, if upstream's error has a given type."""

    def __init__(self, options: OnErrorResume) -> None:
        self._options: OnErrorResume | None = options

    def next(self, error: BaseException | None, /) -> Publisher[Any] | Ended:
        options, self._options = self._options, None  # resume only once
        if options is None or error is None or not isinstance(error, options.on):
            return Ended(error)
        return _check_publisher(options.fn, options.fn(error))


def _check_publisher(fn: Callable[..., Any], publisher: Any) -> Publisher[Any]:
    if not callable(getattr(publisher, "subscribe", None)):
        raise TypeError(
            f"on_error_resume: {describe_callable(fn)} must return a publisher, got "
            f"{type(publisher).__name__}; for given elements return from_iterable(...)"
        )
    return publisher  # type: ignore[no-any-return]
