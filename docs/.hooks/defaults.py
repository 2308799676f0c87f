"""Defaults in the reference: the value of a constant in place of its name, if it is not public."""

from __future__ import annotations

from typing import Any

import griffe

_PUBLIC = frozenset({"MISSING", "UNBOUNDED"})


class Defaults(griffe.Extension):
    """Replace the names among the defaults of parameters."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Look at every function once the package is loaded, so that names can be resolved."""
        _replace_in(pkg, set())


def _replace_in(owner: griffe.Object, seen: set[str]) -> None:
    for member in list(owner.members.values()):
        if member.is_alias or member.path in seen:
            continue
        seen.add(member.path)
        if member.is_function:
            for parameter in member.parameters:
                parameter.default = _value_of(parameter.default)
        elif member.is_module or member.is_class:
            _replace_in(member, seen)


def _value_of(default: Any) -> Any:
    """Return the expression that a module's constant is made of; else ``default``."""
    while isinstance(default, griffe.ExprName) and default.name not in _PUBLIC:
        try:
            found = default.parent.modules_collection[default.canonical_path]
        except (AttributeError, KeyError):
            return default
        found = found.final_target if found.is_alias else found
        if not found.is_attribute or found.value is None:
            return default
        default = found.value
    return default
