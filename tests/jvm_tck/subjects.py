"""What both kits judge: every verification class in ``tests/tck/test_our_*.py``."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstreams_fast.tck import Verification
from rstreams_fast.tck.command import verifications_of

__all__ = ["ROOT", "Subject", "choose", "fixtures", "list_subjects"]

ROOT = Path(__file__).resolve().parents[2]
_PREFIX = "test_our_"


@dataclass(frozen=True)
class Subject:
    """One thing we ship, as its verification class makes it."""

    theme: str  #: such as ``publishers``: the file
    verification: type[Verification]
    kind: str  #: publisher, blackbox, whitebox or processor

    @property
    def name(self) -> str:
        return f"{self.theme}.{self.verification.__name__}"

    @property
    def is_official(self) -> bool:
        """Whether the official kit can judge it: that kit waits for each element at once."""
        return not getattr(self.verification, "delivers_at_end", False)


def list_subjects() -> list[Subject]:
    """All of them, by file and in the order written."""
    found = []
    for path in sorted((ROOT / "tests" / "tck").glob(f"{_PREFIX}*.py")):
        module = importlib.import_module(f"tests.tck.{path.stem}")
        for value in vars(module).values():
            if _is_collected(value) and value.__module__ == module.__name__:
                (kind,) = verifications_of(value)
                found.append(Subject(path.stem.removeprefix(_PREFIX), value, kind))
    return found


def choose(names: list[str]) -> list[Subject]:
    """Those of these names, in this order; all if there are none."""
    known = {subject.name: subject for subject in list_subjects()}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"tests/tck has no class {', '.join(unknown)}")
    return [known[name] for name in names] if names else list(known.values())


def _is_collected(value: object) -> bool:
    return (
        inspect.isclass(value)
        and issubclass(value, Verification)
        and bool(getattr(value, "__test__", True))
        and value.is_complete()
    )


@contextmanager
def fixtures(verification: Verification) -> Iterator[None]:
    """What pytest would have set up: the class's own autouse fixtures, generators of ``self``."""
    found: dict[str, Any] = {}
    for base in reversed(type(verification).__mro__):
        for name, value in vars(base).items():
            if hasattr(value, "_fixture_function_marker"):
                found[name] = inspect.unwrap(value)
    with ExitStack() as stack:
        for name, function in found.items():
            if len(inspect.signature(function).parameters) != 1:
                raise TypeError(f"{name} needs other fixtures: it cannot be judged outside pytest")
            stack.enter_context(contextmanager(function)(verification))
        yield
