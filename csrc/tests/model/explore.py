"""Explores every interleaving of the Promela models beside this file, and proves them alive.

Each model must hold. Then each of its mutants, the macros that it tests with ``#ifdef`` or
``#ifndef`` and does not define itself, must fail. Needs Spin (Debian: ``spin``) and a C compiler.
"""
# ruff: noqa: INP001  (a script, not part of a package)

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEPTH = "1000000"
SECONDS = 300


def mutants(model: Path) -> list[str]:
    text = model.read_text()
    asked = re.findall(r"^#ifn?def (\w+)", text, re.MULTILINE)
    own = set(re.findall(r"^#define (\w+)", text, re.MULTILINE))
    return list(dict.fromkeys(name for name in asked if name not in own))


def explore(model: Path, cc: str, *macros: str) -> tuple[str | None, str]:
    """What was violated, if anything; and how many states there were."""
    with tempfile.TemporaryDirectory() as directory:
        defines = [f"-D{macro}" for macro in macros]
        for command in (
            ["spin", "-a", *defines, str(model)],
            [cc, "-O2", "-w", "-DSAFETY", "-o", "pan", "pan.c"],
        ):
            subprocess.run(command, cwd=directory, check=True, capture_output=True)
        said = subprocess.run(
            ["./pan", f"-m{DEPTH}"],
            cwd=directory,
            check=True,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        ).stdout
    if "max search depth too small" in said or not re.search(r"errors: \d", said):
        raise SystemExit(f"{model.name}: Spin did not finish:\n{said}")
    violated = re.search(r"^pan:1: (.+?) *\(at depth", said, re.MULTILINE)
    states = re.search(r"(\d+) states, stored", said)
    return violated and violated[1], states[1] if states else "?"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cc", default="cc")
    arguments = parser.parse_args()
    if shutil.which("spin") is None:
        print("Spin is needed; install it with: apt-get install spin", file=sys.stderr)
        return 1
    good = True
    models = sorted(HERE.glob("*.pml"))
    for model in models:
        violated, states = explore(model, arguments.cc)
        good = good and violated is None
        print(f"  {'ok  ' if violated is None else 'FAIL'}  {model.name}: {violated or states}")
        for mutant in mutants(model):
            violated, _ = explore(model, arguments.cc, mutant)
            good = good and violated is not None
            print(f"    {'caught  ' if violated else 'SURVIVED'}  {mutant}: {violated or ''}")
    return 0 if good and models else 1


if __name__ == "__main__":
    sys.exit(main())
