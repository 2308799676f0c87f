"""How many instructions the C core's hot paths may take: ``python -m bench.budgets``.

Callgrind counts those of ``hot.c``, one thread and no interpreter, so that a count is the same on
every run and under any load. ``table.json`` holds what each path takes, by compiler and its major
version, since another compiler makes other code. More than 3 % above it fails.

Then the check proves itself: in a copy of the headers every path is made 5 % dearer, and each must
be found.
"""

from __future__ import annotations

import json
import math
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["BudgetError", "Verdict", "compilers", "count", "make_dearer", "read_table", "verdicts"]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "budgets"
TABLE = HERE / "table.json"

#: Beyond this a path is too dear, as a part of its budget.
TOLERANCE = 0.03
#: For a compiler that the table does not know: so much above the dearest one that it knows.
UNKNOWN_TOLERANCE = 0.25
#: How much dearer the proof makes every path.
INJECTED = 0.05
#: Calls of each path: the few instructions around them vanish beside these.
CALLS = 100_000
_LIMIT = 120  # seconds

# As the extension is built (setup.py), but for the one function that hot.c brings itself.
FLAGS = ["-O3", "-std=gnu11", "-fno-strict-aliasing", "-fno-builtin-memmove", "-Wall", "-Werror"]

#: Where the proof adds instructions: a function that the path calls once, and its header.
INJECTIONS = {
    "demand_request": ("rsf_demand.h", "rsf_demand_request"),
    "demand_fulfil": ("rsf_demand.h", "rsf_demand_fulfil"),
    "ring_one": ("rsf_ring.h", "rsf_ring_commit"),
    "ring_guarded": ("rsf_ring.h", "rsf_ring_enter_producer"),
    "ring_burst": ("rsf_ring.h", "rsf_ring_release"),
    "serial_direct": ("rsf_serial.h", "rsf_serial_try_acquire"),
    "serial_mailbox": ("rsf_serial.h", "rsf_serial_publish"),
    "records": ("rsf_records.h", "rsf_records_take"),
}
#: What is counted beside them: nothing of ours, so it has no budget.
FLOOR = "bare_add"

Counts = dict[str, float]


class BudgetError(Exception):
    """The instructions cannot be counted, or a path gave a wrong result."""


@dataclass(frozen=True)
class Verdict:
    """One path: what it takes, and what it may take, in instructions."""

    path: str
    counted: float
    budget: float
    tolerance: float

    @property
    def over(self) -> float:
        """As a part of the budget."""
        return self.counted / self.budget - 1

    @property
    def holds(self) -> bool:
        return self.counted <= self.budget * (1 + self.tolerance)


def compilers() -> list[str]:
    """Those of gcc and clang that are there."""
    return [name for name in ("gcc", "clang") if shutil.which(name)]


def key(compiler: str) -> str:
    """What the table calls this compiler: ``gcc-12 x86_64``."""
    version = _run([compiler, "-dumpversion"]).strip().partition(".")[0]
    return f"{compiler}-{version} {platform.machine()}"


def read_table() -> dict[str, Counts]:
    """Instructions for each call, by compiler and path."""
    table: dict[str, Counts] = json.loads(TABLE.read_text())
    return table


def verdicts(counted: Counts, table: Mapping[str, Counts], compiler: str) -> list[Verdict]:
    """Every path of ours against its budget. A path without one is a ``BudgetError``.

    A compiler that is not in the table is held to the dearest one of the same processor.
    """
    alike = [row for name, row in table.items() if name.split()[1] == compiler.split()[1]]
    answer = []
    for path in INJECTIONS:
        known = [row[path] for row in alike if path in row]
        own = table.get(compiler, {}).get(path)
        if (compiler in table and own is None) or not known:
            raise BudgetError(f"{path} has no budget; write the table anew (ARGS=--write)")
        if own is None:
            answer.append(Verdict(path, counted[path], max(known), UNKNOWN_TOLERANCE))
        else:
            answer.append(Verdict(path, counted[path], own, TOLERANCE))
    return answer


def count(compiler: str, include: Path = ROOT / "csrc") -> Counts:
    """Instructions for each call of every path, of the headers in ``include``."""
    if shutil.which("valgrind") is None:
        raise BudgetError("there is no valgrind; install it with: apt-get install valgrind")
    directory = BUILD / f"{compiler}-{include.name}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    program, dump = directory / "hot", directory / "counts"
    sources = [HERE / "hot.c", ROOT / "csrc" / "rsf_serial.c"]
    _run([compiler, *FLAGS, f"-I{include}", *map(str, sources), "-o", str(program)])
    tool = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={dump}"]
    _run([*tool, str(program), str(CALLS)])
    counted: Counts = {}
    for path in directory.glob("counts.*"):
        text = path.read_text()
        name = re.search(r"^desc: Trigger: Client Request: (\w+)$", text, re.MULTILINE)
        total = re.search(r"^totals: (\d+)$", text, re.MULTILINE)
        if name and total:
            counted[name[1]] = round(int(total[1]) / CALLS, 1)
    missing = {FLOOR, *INJECTIONS} - counted.keys()
    if missing:
        raise BudgetError(f"callgrind counted nothing for {', '.join(sorted(missing))}")
    return counted


def make_dearer(counted: Counts) -> Path:
    """A copy of the headers in which every path takes 5 % more instructions."""
    target = BUILD / "dearer"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for header in (ROOT / "csrc").glob("*.h"):
        shutil.copy(header, target)
    for path, (header_name, function) in INJECTIONS.items():
        nops = math.ceil(counted[path] * INJECTED)
        header = target / header_name
        code, times = re.subn(
            rf"(^{function}\([^;{{]*\)\n{{\n)",
            r"\g<1>" + '    __asm__ volatile("nop");\n' * nops,
            header.read_text(),
            flags=re.MULTILINE,
        )
        if times != 1:
            raise BudgetError(f"{header_name} has no function {function} to make dearer")
        header.write_text(code)
    return target


def _run(command: list[str]) -> str:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT,
        check=False,
    )
    if done.returncode:
        said = (done.stderr + done.stdout).strip().splitlines()
        raise BudgetError(f"{Path(command[0]).name} failed:\n" + "\n".join(said[-10:]))
    return done.stdout
