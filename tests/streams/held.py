"""Calls that are held until a test says so, and objects that nothing but references holds."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.helpers import wait_for


class Hold:
    """Holds those who call it until they may leave; gives the element, its last argument."""

    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        self.entered.set()
        wait_for(self.leave, "leave")
        return arguments[-1] if arguments else None


@contextmanager
def references_alone() -> Iterator[None]:
    """Switch the garbage collector off: then each object that lives is referred to."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
