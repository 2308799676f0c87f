"""``on_error_continue``: makes the stages above drop elements for which their functions fail."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, cast

from rstreams_fast.streams.engine.assembly import Part, Stage

__all__ = ["with_error_handler"]

_REPLACEMENTS: Final = {"map": "map_not_none", "map_not_none": "map_not_none", "filter": "filter"}
"""Maps the name of a stage to the name of the stage that replaces it. The new stage drops an
element for which its function returns ``None``."""


class _CatchingFunction:
    """Calls a stage's function. If the function raises, calls ``handler`` and returns ``None``.

    A stage with this function drops the element if the result is ``None``. If the user's function
    of ``map`` itself returns ``None``, ``handler`` gets a ``TypeError``.
    """

    def __init__(self, stage: str, fn: Callable[[Any], Any], handler: Callable[..., Any]) -> None:
        functools.update_wrapper(cast(Any, self), fn, updated=())
        self._fn = fn
        self._handler = handler
        self._stage = stage

    def __reduce__(self) -> Any:
        return type(self), (self._stage, self._fn, self._handler)

    def __call__(self, element: Any) -> Any:
        try:
            result = self._fn(element)
            if self._stage == "filter":
                result = bool(result)  # bool() may raise, as for a numpy array
            elif result is None and self._stage == "map":
                raise TypeError("map: the function returned None, which is not an element (§2.13)")
        except Exception as error:
            self._handler(error, element)
            return None
        return result


def with_error_handler(
    parts: tuple[Part, ...], handler: Callable[[Exception, Any], object]
) -> list[Part]:
    """Return a copy of ``parts`` (the parts of a stream) in which the last stages are replaced.

    If the function of a new stage raises, the stage calls ``handler(exception, element)`` and drops
    the element, and the stream goes on. ``map``, ``map_not_none`` and ``filter`` are replaced, from
    the last part upwards. The replacement stops at a part of another kind.

    Raises:
        ValueError: The last part is not ``map``, ``map_not_none`` or ``filter``.
    """
    done: list[Part] = list(parts)
    place = len(parts)
    while place and isinstance(part := parts[place - 1], Stage) and part.op[0] in _REPLACEMENTS:
        stage, fn = part.op
        if isinstance(fn, _CatchingFunction):
            # An earlier on_error_continue has replaced this stage, and all stages above this stage
            # that can be replaced. So stop here.
            return done
        place -= 1
        done[place] = Stage((_REPLACEMENTS[stage], _CatchingFunction(stage, fn, handler)))
    if place == len(parts):
        raise ValueError(
            "on_error_continue goes directly below map, map_not_none or filter: the failure of any "
            "other part is its last signal (§1.7)"
        )
    return done
