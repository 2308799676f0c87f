"""The exceptions of the package, and the hook for errors that nobody can take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import rstreams_fast as rsf
from rstreams_fast import errors


async def same(x: Any) -> Any:
    return x


async def one(_x: Any) -> AsyncIterator[int]:
    yield 1


def test_every_exception_is_public() -> None:
    kinds = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    assert kinds <= set(rsf.__all__)
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(rsf.WorkDroppedError, match="the event loop is closed"):
        rsf.range_(3).map_async(same, loop=loop).to_list()


@pytest.mark.parametrize("hook", [5, same, one])
def test_a_hook_that_would_do_nothing_is_refused(hook: Any, dropped: list[BaseException]) -> None:
    with pytest.raises(TypeError, match=r"hook must be (callable|a plain function)"):
        rsf.on_dropped_error(hook)
    problem = OSError()
    errors.report_dropped(problem, "a test")
    assert dropped == [problem]
