"""What a primitive does is written once, in the specification."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__all__ = ["described_by"]

C = TypeVar("C", bound=type)


def described_by(specification: type) -> Callable[[C], C]:
    """Give a class and its members the docstrings that they have in ``specification``."""

    def describe(cls: C) -> C:
        cls.__doc__ = cls.__doc__ or specification.__doc__
        for name, member in vars(cls).items():
            described = vars(specification).get(name)
            if described is not None and member.__doc__ is None:
                member.__doc__ = described.__doc__
        return cls

    return describe
