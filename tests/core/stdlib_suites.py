"""CPython's own tests of queues and thread pools, with our classes in place of theirs.

``python -m tests.core.stdlib_suites queue`` (or ``pool``) prints how many ran.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import pkgutil
import sys
import unittest
from collections.abc import Iterator
from typing import Any

import test
from test.support import script_helper

from rstreams_fast import queues

# Where Debian puts them, for an interpreter that came without.
test.__path__.append("/usr/lib/python{}.{}/test".format(*sys.version_info))


class ThreadPoolExecutor(queues.BoundedExecutor):
    """The suite submits as to a pool without a bound."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, max_queue_size=100_000, **kwargs)


def modules(name: str) -> list[Any]:
    """The module, or the package's modules, as the suite of pools is in newer versions."""
    found = importlib.import_module(f"test.{name}")
    within = pkgutil.iter_modules(getattr(found, "__path__", ()), f"{found.__name__}.")
    return [found, *(importlib.import_module(each.name) for each in within)]


def cases(module: Any) -> Iterator[type[unittest.TestCase]]:
    for case in list(vars(module).values()):
        if isinstance(case, type) and issubclass(case, unittest.TestCase):
            yield case


def queue_cases() -> Iterator[type[unittest.TestCase]]:
    (theirs,) = modules("test_queue")
    for case in cases(theirs):
        if getattr(case, "queue", None) is theirs.c_queue:
            yield type(case.__name__, (case,), {"queue": queues})


def pool_cases() -> Iterator[type[unittest.TestCase]]:
    concurrent.futures.ThreadPoolExecutor = ThreadPoolExecutor  # before they are imported
    paths = f"import sys; sys.path[:] = {sys.path}; import test; test.__path__[:] = "
    paths += repr(list(test.__path__))

    def assert_python_ok(*arguments: str) -> Any:
        *options, program = arguments
        changed = program.replace(
            "from concurrent.futures import Th", f"{paths}; from tests.core.stdlib_suites import Th"
        )
        assert changed != program
        return script_helper.assert_python_ok(*options, changed)

    for module in modules("test_concurrent_futures"):
        if hasattr(module, "assert_python_ok"):
            module.assert_python_ok = assert_python_ok
        for case in cases(module):
            if getattr(case, "executor_type", None) is ThreadPoolExecutor:
                yield case


def run(chosen: str) -> int:
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    suite = unittest.TestSuite(
        load(case) for case in {"queue": queue_cases, "pool": pool_cases}[chosen]()
    )
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    print(result.testsRun - len(result.skipped))
    return not result.wasSuccessful()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
