"""Proves the checks alive: builds with one order weakened or one bound dropped must fail.

Each mutant is the C core with exactly one thing broken: a memory order weakened through its macro,
or one line of the source replaced. Its program is built and run until it fails; a mutant that
survives every run fails this check.

Weakened orders meet two judges. On the simulated machine of ``tests/machine`` each of them fails in
one of the closed programs of ``tests/model``, from the same seed every time. ThreadSanitizer, on
real threads, sees those that leave plain memory unprotected; the others (the sequentially
consistent accesses S8 of the ring, the exchanges of the waiting flags, the acquire half of the
serializer's leave and the release half of its enter) are not listed for it: x86 executes the weaker
order as the strong one, and a mutant that is caught by luck proves nothing.

With ``--fuzz``, what one thread can see has to be found by the fuzzers of ``tests/fuzz`` instead.
"""
# ruff: noqa: INP001  (a script, not part of a package)

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

CSRC = Path(__file__).resolve().parent.parent
RUNS = 20  # of a stress program; nearly all mutants are caught in the first, the others soon after
SECONDS = "1"
MODEL_RUNS = "200000"  # of a closed program on the simulated machine
FUZZ_SECONDS = 60
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-pthread", "-DHANG_SECONDS=2"]


@dataclass(frozen=True)
class Mutant:
    program: str  # or "model_" and a primitive, for all its closed programs
    define: str = ""  # MACRO=order
    file: str = ""
    old: str = ""  # occurs in `file` exactly once
    new: str = ""
    tsan: bool = False

    @property
    def modelled(self) -> bool:
        return self.program.startswith("model")

    @property
    def fuzzed(self) -> bool:
        return self.program.startswith("fuzz")

    @property
    def name(self) -> str:
        change = self.define or f"{self.file}: {self.old} -> {self.new or '(nothing)'}"
        return f"{self.program}: {' '.join(change.split())}"


def weakened(program: str, macro: str, order: str = "rlx") -> Mutant:
    return Mutant(program, define=f"{macro}={order}", tsan=True)


def modelled(program: str, prefix: str, *orders: str) -> list[Mutant]:
    """One mutant for each ``MACRO=order``; the macros' common beginning is given once."""
    return [Mutant(program, define=f"{prefix}{order}") for order in orders]


def replaced(program: str, file: str, old: str, new: str, *, tsan: bool = False) -> Mutant:
    return Mutant(program, file=file, old=old, new=new, tsan=tsan)


MUTANTS = [
    # Every order of every access, on the simulated machine.
    *modelled(
        "model_demand",
        "RSF_DEMAND_ORDER_",
        *("CHANGE=rel", "CHANGE=acq", "CHANGE=rlx", "LOOK=rlx"),
    ),
    *modelled(
        "model_ring",
        "RSF_RING_ORDER_",
        *("COMMIT=rlx", "PEEK=rlx", "RELEASE=rlx", "RESERVE=rlx", "SIZE=rlx"),
        *("LEAVE=rlx", "ENTER_PRODUCER=acqrel", "ENTER_PRODUCER=rlx", "ENTER_CONSUMER=rlx"),
        *("CLOSE=rel", "CLOSE=rlx", "IS_CLOSED=acq", "IS_CLOSED=rlx", "INSIDE=acq", "INSIDE=rlx"),
        *("PARK=acq", "PARK=rel"),
    ),
    *modelled(
        "model_serial",
        "RSF_SERIAL_ORDER_",
        *("PUBLISH=rlx", "PEEK=rlx", "RELEASE=rlx", "RESERVE=rlx", "SIZE=rlx"),
        *("ENTER=rel", "ENTER=acq", "ACQUIRE=rlx", "LEAVE=acq", "LEAVE=rel"),
        *("PUBLISH_TERMINAL=rlx", "TERMINAL=rlx", "CANCEL=rlx", "IS_CANCELLED=rlx"),
        *("PARK=acq", "PARK=rel"),
    ),
    *modelled("model_baton", "RSF_BATON_ORDER_", "CALL=acq", "CALL=rlx", "TAKE=rel", "TAKE=rlx"),
    # The demand counter.
    weakened("stress_demand", "RSF_DEMAND_ORDER_CHANGE"),
    weakened("stress_demand", "RSF_DEMAND_ORDER_CHANGE", "acq"),
    weakened("stress_demand", "RSF_DEMAND_ORDER_LOOK"),
    replaced(
        "validate_demand",
        "rsf_demand.h",
        "before > RSF_UNBOUNDED - n ? RSF_UNBOUNDED : before + n",
        "(int64_t)((uint64_t)before + (uint64_t)n)",
    ),
    replaced("validate_demand", "rsf_demand.h", "RSF_UNLIKELY(before < n)", "false"),
    replaced("validate_demand", "rsf_demand.h", "while (before >= 0) {", "for (;;) {"),
    replaced(
        "model_demand",
        "rsf_demand.h",
        "rsf_cas(i64, RSF_DEMAND_ORDER_CHANGE, &demand->value, &before, sentinel)",
        "(rsf_store_rel_i64(&demand->value, sentinel), true)",
    ),
    # The ring.
    weakened("stress_ring", "RSF_RING_ORDER_COMMIT"),
    weakened("stress_ring", "RSF_RING_ORDER_PEEK"),
    weakened("stress_ring", "RSF_RING_ORDER_RELEASE"),
    weakened("stress_ring", "RSF_RING_ORDER_RESERVE"),
    weakened("stress_ring", "RSF_RING_ORDER_LEAVE"),
    weakened("stress_ring", "RSF_RING_ORDER_ENTER_PRODUCER"),
    weakened("stress_ring", "RSF_RING_ORDER_ENTER_CONSUMER"),
    weakened("stress_ring", "RSF_RING_ORDER_CLOSE"),
    weakened("stress_ring", "RSF_RING_ORDER_IS_CLOSED"),
    replaced(
        "validate_ring",
        "rsf_ring.h",
        "uint64_t free = ring->capacity - (tail - ring->cached_head);",
        "uint64_t free = rsf_ring_slots(ring) - (tail - ring->cached_head);",
    ),
    replaced("validate_ring", "rsf_records.h", "given + (size_t)(piece * size)", "given"),
    replaced(
        "validate_ring", "rsf_records.h", "taken + (size_t)(piece * size), slots", "taken, slots"
    ),
    *(
        replaced("validate_ring", "rsf_ring.h", f"&ring->{index}, end); /* {label} */", wrong)
        for index, label, wrong in (
            ("tail", "R1", "&ring->tail, ring->cached_head + ring->capacity);"),
            ("head", "R2", "&ring->head, ring->cached_tail);"),
        )
    ),
    replaced("stress_ring", "rsf_ring.h", "return free < max ? free : max;", "return max;"),
    replaced("stress_ring", "rsf_ring.h", "return ready < max ? ready : max;", "return max;"),
    replaced(
        "model_ring",
        "rsf_ring.h",
        "return size < ring->capacity ? size : ring->capacity;",
        "return size;",
    ),
    replaced(
        "validate_ring",
        "rsf_ring.h",
        "rsf_exchange(u32, RSF_RING_ORDER_ENTER_PRODUCER, &ring->producer_inside, 1) == 0",
        "(rsf_exchange_sc_u32(&ring->producer_inside, 1), true)",
    ),
    replaced(
        "model_ring",
        "rsf_ring.h",
        "rsf_exchange(u32, RSF_RING_ORDER_ENTER_CONSUMER, &ring->consumer_inside, 1) == 0",
        "(rsf_exchange_sc_u32(&ring->consumer_inside, 1), true)",
    ),
    replaced(
        "model_ring",
        "rsf_ring.h",
        "rsf_load(u32, RSF_RING_ORDER_INSIDE, &ring->producer_inside) != 0",
        "false",
    ),
    replaced(
        "validate_ring",
        "rsf_ring.h",
        "if (empty && !rsf_ring_is_closed(ring)) {",
        "if (true || empty) {",
    ),
    replaced(
        "validate_ring",
        "rsf_ring.h",
        "if (size >= ring->capacity && !rsf_ring_is_closed(ring)) {",
        "if (true || size) {",
    ),
    replaced(
        "stress_ring",
        "rsf_ring.h",
        "return rsf__ring_take_waiting(&ring->consumer_waiting); /* R6 */",
        "return false;",
    ),
    # The serializer.
    weakened("stress_serial", "RSF_SERIAL_ORDER_PUBLISH"),
    weakened("stress_serial", "RSF_SERIAL_ORDER_PEEK"),
    weakened("stress_serial", "RSF_SERIAL_ORDER_RELEASE"),
    weakened("stress_serial", "RSF_SERIAL_ORDER_RESERVE"),
    weakened("stress_serial", "RSF_SERIAL_ORDER_ENTER"),
    weakened("stress_serial", "RSF_SERIAL_ORDER_ENTER", "rel"),
    weakened("stress_serial", "RSF_SERIAL_ORDER_ACQUIRE"),
    weakened("stress_serial", "RSF_SERIAL_ORDER_LEAVE"),
    weakened("stress_serial", "RSF_SERIAL_ORDER_LEAVE", "acq"),
    weakened("stress_serial", "RSF_SERIAL_ORDER_PUBLISH_TERMINAL"),
    weakened("stress_serial", "RSF_SERIAL_ORDER_TERMINAL"),
    weakened("stress_serial", "RSF_SERIAL_ORDER_CANCEL"),
    weakened("stress_serial", "RSF_SERIAL_ORDER_IS_CANCELLED"),
    replaced(
        "validate_serial",
        "rsf_serial.h",
        "(tail - head) / RSF__SERIAL_STEP >= serial->capacity",
        "(tail - head) / RSF__SERIAL_STEP > serial->capacity",
    ),
    replaced(
        "stress_serial",
        "rsf_serial.h",
        "(tail - head) / RSF__SERIAL_STEP >= serial->capacity",
        "false && head",
    ),
    replaced(
        "model_serial",
        "rsf_serial.h",
        "rsf_cas_rlx_u64(&serial->tail, &tail, tail + RSF__SERIAL_STEP)",
        "(rsf_store_rel_u64(&serial->tail, tail + RSF__SERIAL_STEP), true)",
    ),
    replaced(
        "model_serial",
        "rsf_serial.h",
        "rsf_fetch_add(u64, RSF_SERIAL_ORDER_ENTER, &serial->wip, 1) != 0",
        "(rsf_fetch_add_acqrel_u64(&serial->wip, 1), false)",
    ),
    replaced(
        "model_serial",
        "rsf_serial.h",
        "if (before == seen) {",
        "rsf_store_rel_u64(&serial->wip, 0); if (true || before) {",
    ),
    replaced(
        "validate_serial",
        "rsf_serial.c",
        "return (before & RSF__SERIAL_LATCHED) == 0;",
        "return before == before;",
    ),
    replaced(
        "model_serial",
        "rsf_serial.h",
        "(rsf_load_rlx_u64(&serial->head) | RSF__SERIAL_LATCHED);",
        "rsf_load_rlx_u64(&serial->tail);",
    ),
    replaced(
        "model_serial",
        "rsf_serial.h",
        "return rsf_load_rlx_u64(&serial->tail) == rsf_load_rlx_u64(&serial->head);",
        "return rsf_load_rlx_u64(&serial->tail) == rsf_load_rlx_u64(&serial->tail);",
    ),
    replaced(
        "validate_serial",
        "rsf_serial.c",
        "return (tail - head) / RSF__SERIAL_STEP >= serial->capacity;",
        "return tail == tail && head == head;",
    ),
    replaced(
        "stress_serial",
        "rsf_serial.h",
        "return rsf_exchange(u32, RSF_SERIAL_ORDER_PARK, &serial->waiting, 0) != 0; /* R7 */",
        "return false && serial->waiting;",
    ),
    # The baton.
    weakened("stress_baton", "RSF_BATON_ORDER_CALL"),
    weakened("stress_baton", "RSF_BATON_ORDER_CALL", "acq"),
    weakened("stress_baton", "RSF_BATON_ORDER_TAKE"),
    weakened("stress_baton", "RSF_BATON_ORDER_TAKE", "rel"),
    *(
        replaced(f"{judge}_baton", "rsf_baton.h", old, new)
        for judge, old, new in (
            # One call is told to wake, and the sleeper's only; prepare_sleep looks; take forgets.
            ("validate", " && (before & RSF__BATON_CALLED) == 0;", ";"),
            ("stress", " && (before & RSF__BATON_CALLED) == 0;", ";"),
            ("stress", "return (before & RSF__BATON_ASLEEP) != 0", "return false"),
            ("validate", "return (before & RSF__BATON_CALLED) == 0;", "return before == before;"),
            ("validate", "&baton->state, 0); /* A1 */", "&baton->state, RSF__BATON_ASLEEP);"),
            ("validate", "& RSF__BATON_HERE) != 0;", "& RSF__BATON_CALLED) != 0;"),
            # A call changes the word though it was called already; no change tears the chain.
            (
                "model",
                "uint32_t before = rsf_fetch_or(u32, RSF_BATON_ORDER_CALL, &baton->state, how);",
                (
                    "uint32_t before = rsf_load_acq_u32(&baton->state); if ((before & how) == 0)"
                    " before = rsf_fetch_or(u32, RSF_BATON_ORDER_CALL, &baton->state, how);"
                ),
            ),
            (
                "model",
                "uint32_t before = rsf_fetch_or(u32, RSF_BATON_ORDER_CALL, &baton->state, how);",
                (
                    "uint32_t before = rsf_load_acq_u32(&baton->state);"
                    " rsf_store_rel_u32(&baton->state, before | how);"
                ),
            ),
            (
                "model",
                "rsf_fetch_or_rlx_u32(&baton->state, RSF__BATON_ASLEEP);",
                (
                    "rsf_load_acq_u32(&baton->state);"
                    " rsf_store_rel_u32(&baton->state, before | RSF__BATON_ASLEEP);"
                ),
            ),
            (
                "model",
                "(void)rsf_exchange(u32, RSF_BATON_ORDER_TAKE, &baton->state, 0);",
                "rsf_store_rel_u32(&baton->state, 0);",
            ),
        )
    ),
]


def build(mutant: Mutant, number: int, cc: str, directory: Path) -> list[Path]:
    """A copy of the core with the one change, and the programs built from it."""
    tree = directory / f"{number:02d}"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(CSRC, tree, ignore=shutil.ignore_patterns("build"))
    if mutant.file:
        path = tree / mutant.file
        text = path.read_text()
        squeezed, found = squeeze(text, mutant.old)
        if found != 1:
            raise SystemExit(f"{mutant.name}: the line to change occurs {found} times, not once")
        path.write_text(squeezed.replace(squeeze(mutant.old)[0], mutant.new))
    elif mutant.define.partition("=")[0] not in (tree / header(mutant)).read_text():
        raise SystemExit(f"{mutant.name}: there is no such macro")
    command = [cc, *FLAGS, f"-I{tree}"]
    if mutant.define:
        command.append(f"-D{mutant.define}")
    if mutant.tsan:
        command.append("-fsanitize=thread")
    tests = tree / "tests"
    if mutant.modelled:
        command += ['-DRSF_MODEL="machine.h"', f"-I{tests / 'machine'}"]
        programs = sorted((tests / "model").glob(f"{primitive(mutant)}_*.c"))
        also = [tests / "machine" / "machine.c"]
    elif mutant.fuzzed:
        command += ["-fsanitize=fuzzer"]
        programs, also = [tests / "fuzz" / f"{mutant.program}.c"], []
    else:
        programs = [tests / f"{mutant.program}.c"]
        also = [tree / "rsf_serial.c"]
    binaries = [program.with_suffix("") for program in programs]
    for program, binary in zip(programs, binaries, strict=True):
        subprocess.run([*command, str(program), *map(str, also), "-o", str(binary)], check=True)
    return binaries


def primitive(mutant: Mutant) -> str:
    return mutant.program.partition("_")[2]


def header(mutant: Mutant) -> str:
    return f"rsf_{primitive(mutant)}.h"


def squeeze(text: str, wanted: str = "") -> tuple[str, int]:
    """Joins broken lines, so that the formatter's line breaks do not hide what is looked for."""
    if wanted:
        target = " ".join(wanted.split())
        lines = text.splitlines()
        for start in range(len(lines)):
            for end in range(start + 1, min(start + 5, len(lines)) + 1):
                joined = " ".join(part.strip() for part in lines[start:end])
                if target in joined and target not in " ".join(
                    part.strip() for part in lines[start + 1 : end]
                ):
                    lines[start:end] = [joined, *[""] * (end - start - 1)]
                    break
        text = "\n".join(lines) + "\n"
        return text, text.count(target)
    return " ".join(text.split()), 0


def first_line_of_interest(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip("= \n")]
    for line in lines:
        if line.startswith(("SUMMARY: Thread", "WARNING: ThreadSanitizer")) or "not hold" in line:
            return line
    return lines[0] if lines else "(no output)"


def hunt(mutant: Mutant, binaries: list[Path]) -> str | None:
    """How the mutant was caught, or None if it survived every run."""
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    for binary in binaries:
        # A closed program and a fuzzer count their own runs.
        for run in range(1, 2 if mutant.modelled or mutant.fuzzed else RUNS + 1):
            arguments = [MODEL_RUNS if mutant.modelled else SECONDS]
            if mutant.fuzzed:
                arguments = ["-seed=1", f"-max_total_time={FUZZ_SECONDS}", "-verbosity=0"]
            result = subprocess.run(
                [str(binary), *arguments],
                check=False,
                cwd=binary.parent,
                capture_output=True,
                text=True,
                env=environment,
            )
            if result.returncode != 0:
                where = binary.name if mutant.modelled else f"run {run}"
                return f"{where}: {first_line_of_interest(result.stderr)}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cc", default="gcc")
    parser.add_argument("--build", type=Path, default=CSRC / "build" / "mutants")
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--fuzz", action="store_true", help="the fuzzers' mutants")
    arguments = parser.parse_args()
    mutants = MUTANTS
    if arguments.fuzz:
        mutants = [
            replace(mutant, program=f"fuzz_{primitive(mutant)}")
            for mutant in MUTANTS
            if mutant.program.startswith("validate")
        ]
    mutants = [mutant for mutant in mutants if arguments.only in mutant.name]

    def one(number: int) -> bool:
        mutant = mutants[number]
        caught = hunt(mutant, build(mutant, number, arguments.cc, arguments.build.resolve()))
        print(f"  {'caught  ' if caught else 'SURVIVED'}  {mutant.name}", flush=True)
        if caught:
            print(f"              {caught}", flush=True)
        return caught is not None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(one, range(len(mutants))))
    print(f"{sum(results)} of {len(results)} mutants caught")
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
