"""The exceptions of the package, and the hook for errors that nobody can take."""

from __future__ import annotations

import asyncio

import pytest

import rstreams_fast as rsf
from rstreams_fast import errors


async def same(x: int) -> int:
    return x


def test_every_exception_is_public() -> None:
    kinds = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    assert kinds <= set(rsf.__all__)
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(rsf.WorkDropped, match="the event loop is closed"):
        rsf.range_(3).map_async(same, loop=loop).to_list()
