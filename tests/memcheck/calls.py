"""A short program for memcheck: every public call of the extension, in all its ways out, twice."""

from __future__ import annotations

import ctypes
import gc
import importlib
import logging
import sys
from functools import partial

from tests.core.conftest import MODULES, load
from tests.core.test_references import QUEUES, TABLE, Cases, Kit, queue_cases


def cases_of_queue(name: str, kit: Kit) -> Cases:
    return queue_cases(
        getattr(importlib.import_module(f"{MODULES['c']}.queues"), name), kit.element
    )


def main() -> None:
    """Make the calls, and drop everything."""
    logging.disable()  # what functions raise here is meant
    core = load("c")
    calls = 0
    table = [*TABLE.values(), *(partial(cases_of_queue, name) for name in QUEUES)]
    for cases in table:
        kit = Kit(core)
        for _what, call in cases(kit):
            for _ in range(2):
                call()
                calls += 1
        kit.loop.close()
        del kit, call
        gc.collect()
    print(f"  {calls} calls")
    for planted in sys.argv[1:]:  # to prove that errors would be found
        canary = ctypes.CDLL(planted)
        canary.beyond(8)
        canary.forget(8)


if __name__ == "__main__":
    main()
