"""What a type checker must know about the ends. Checked by mypy, never run."""

from __future__ import annotations

from typing import assert_type

import rstreams_fast as rsf
from rstreams_fast.streams import ends
from rstreams_fast.streams.iteration import Iteration, iterate


def blocking(numbers: rsf.Publisher[int]) -> None:
    assert_type(ends.to_list(numbers), list[int])
    assert_type(ends.first(numbers), int)
    assert_type(ends.first(numbers, None), int | None)
    assert_type(ends.for_each(numbers, print), ends.Run)
    assert_type(iterate(numbers), Iteration[int])
    for x in iterate(numbers):
        assert_type(x, int)
    with iterate(numbers) as it:
        assert_type(next(it), int)
    ends.for_each(numbers, str.upper)  # type: ignore[arg-type]


async def waiting(numbers: rsf.Publisher[int]) -> None:
    assert_type(await ends.to_list_async(numbers), list[int])
    assert_type(await ends.first_async(numbers, "none"), int | str)
    await ends.for_each(numbers, print)
    async with iterate(numbers) as it:
        async for x in it:
            assert_type(x, int)
