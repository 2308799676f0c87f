"""Proves the checks alive: builds with one access weakened or one line changed must fail.

Each mutant is the C core with exactly one thing broken. Its programs are built and run until one
fails; a mutant that survives every run fails this check.

Memory orders are found, not listed: every call of an accessor that synchronises is weakened by one
step, and by no more, for what is weaker still fails where this fails. Two judges see them. On the
simulated machine of ``tests/machine`` each of them fails in one of the closed programs of
``tests/model``, from the same seed every time. ThreadSanitizer, on real threads, sees those that
leave plain memory unprotected, which are listed for it; the others (the sequentially consistent
accesses S8 of the ring, the exchanges of the waiting flags, the acquire half of the serializer's
leave and the release half of its enter) are not: x86 executes the weaker order as the strong one,
and a mutant that is caught by luck proves nothing.

With ``--fuzz``, what one thread can see has to be found with libFuzzer's bytes, too.
"""
# ruff: noqa: INP001  (a script, not part of a package)

from __future__ import annotations

import argparse
import os
import re
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
    file: str
    change: str  # what is told
    text: str  # the changed file
    tsan: bool = False
    fuzzed: bool = False

    @property
    def modelled(self) -> bool:
        return self.program.startswith("model")

    @property
    def primitive(self) -> str:
        return self.program.partition("_")[2]

    @property
    def name(self) -> str:
        return f"{self.program}: {self.file}: {self.change}"


# -- one access, weakened --------------------------------------------------------------------------

FUNCTION = re.compile(r"^(rsf_\w+)\(", re.MULTILINE)
ACCESS = re.compile(r"\brsf_(load|store|exchange|fetch_\w+?|cas)_(acq_rel|acq|rel|sc)_[ui]\d\d\(")


#: C11 would allow these; but where the result is not used, clang 14 makes a plain store of a
#: release exchange, which loses wakes (see rsf_ring.h, and the two mutants that store).
ALLOWED = {
    "rsf__ring_take_waiting: exchange_acq_rel -> exchange_rel",
    "rsf_serial_take_waiting: exchange_acq_rel -> exchange_rel",
}


def weaker(operation: str, order: str) -> tuple[str, ...]:
    """The orders one step below."""
    if order == "acq_rel":
        return "acq", "rel"
    if order == "sc":
        return ({"load": "acq", "store": "rel"}.get(operation, "acq_rel"),)
    return ("rlx",)


def accesses(file: str) -> list[tuple[str, str, str, int, int]]:
    """Of each access that synchronises: function, operation, order, and where the order stands."""
    text = (CSRC / file).read_text()
    functions = [(match.start(), match[1]) for match in FUNCTION.finditer(text)]
    return [
        (
            max(function for function in functions if function[0] < match.start())[1],
            match[1],
            match[2],
            *match.span(2),
        )
        for match in ACCESS.finditer(text)
    ]


def weakened(program: str, file: str, *only: str) -> list[Mutant]:
    """One mutant for each access of the file and each weaker order.

    Or, under TSan, for each ``function`` or ``function=order`` of ``only``: it is relaxed, or given
    that order. A function has at most one access of a kind, but the look before an exchange.
    """
    text = (CSRC / file).read_text()
    found = accesses(file)

    def mutant(access: tuple[str, str, str, int, int], to: str) -> Mutant:
        function, operation, order, start, end = access
        change = f"{function}: {operation}_{order} -> {operation}_{to}"
        return Mutant(program, file, change, text[:start] + to + text[end:], tsan=bool(only))

    if not only:
        each_step = [mutant(each, to) for each in found for to in weaker(each[1], each[2])]
        return [step for step in each_step if step.change not in ALLOWED]
    wanted = [name.partition("=") for name in only]
    return [
        mutant([each for each in found if each[0] == name][-1], to or "rlx")
        for name, _, to in wanted
    ]


# -- one line, changed -----------------------------------------------------------------------------


def replaced(program: str, file: str, old: str, new: str) -> Mutant:
    text = (CSRC / file).read_text()
    # Where the formatter breaks lines does not matter.
    pattern = re.compile(r"\s+".join(map(re.escape, old.split())))
    found = pattern.findall(text)
    if len(found) != 1:
        raise SystemExit(f"{file}: the line to change occurs {len(found)} times, not once: {old}")
    return Mutant(program, file, f"{old} -> {new}", pattern.sub(lambda _: new, text))


MUTANTS = [
    # Every order of every access, on the simulated machine.
    *weakened("model_demand", "rsf_demand.h"),
    *weakened("model_ring", "rsf_ring.h"),
    *weakened("model_serial", "rsf_serial.h"),
    *weakened("model_serial", "rsf_serial.c"),
    # The demand counter.
    *weakened(
        "stress_demand",
        "rsf_demand.h",
        "rsf_demand_load",
        *("rsf_demand_request", "rsf_demand_request=acq"),
        *("rsf_demand_fulfil", "rsf_demand_fulfil=acq"),
    ),
    replaced(
        "validate_demand",
        "rsf_demand.h",
        "before > RSF_UNBOUNDED - n ? RSF_UNBOUNDED : before + n",
        "(int64_t)((uint64_t)before + (uint64_t)n)",
    ),
    replaced("validate_demand", "rsf_demand.h", "RSF_UNLIKELY(before < n)", "false"),
    replaced("validate_demand", "rsf_demand.h", "if (before < 0 || rsf_cas", "if (rsf_cas"),
    replaced(
        "model_demand",
        "rsf_demand.h",
        "rsf_cas_acq_rel_i64(&demand->value, &before, sentinel)",
        "(rsf_store_rel_i64(&demand->value, sentinel), true)",
    ),
    # The ring.
    *weakened(
        "stress_ring",
        "rsf_ring.h",
        *("rsf_ring_commit_to", "rsf_ring_peek", "rsf_ring_release_to", "rsf_ring_reserve"),
        *("rsf_ring_enter_producer", "rsf_ring_leave_producer"),
        *("rsf_ring_enter_consumer", "rsf_ring_leave_consumer"),
        *("rsf_ring_close", "rsf_ring_is_closed"),
    ),
    replaced(
        "validate_ring",
        "rsf_ring.h",
        "uint64_t free = ring->capacity - (tail - ring->cached_head);",
        "uint64_t free = rsf_ring_slots(ring) - (tail - ring->cached_head);",
    ),
    *(
        replaced(judge, "rsf_records.h", f"{where} + (size_t)(piece * size)", where)
        for judge in ("validate_ring", "model_records")
        for where in ("given", "taken")
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
        "rsf_exchange_sc_u32(&ring->producer_inside, 1) == 0",
        "(rsf_exchange_sc_u32(&ring->producer_inside, 1), true)",
    ),
    replaced(
        "model_ring",
        "rsf_ring.h",
        "rsf_exchange_acq_u32(&ring->consumer_inside, 1) == 0",
        "(rsf_exchange_sc_u32(&ring->consumer_inside, 1), true)",
    ),
    replaced(
        "model_ring",
        "rsf_ring.h",
        "rsf_load_sc_u32(&ring->producer_inside) != 0",
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
    *(  # what LLVM would make of a release exchange
        replaced(
            "model_ring",
            "rsf_ring.h",
            f"(void)rsf__ring_take_waiting(&ring->{side}_waiting);",
            f"rsf_store_rel_u32(&ring->{side}_waiting, 0);",
        )
        for side in ("consumer", "producer")
    ),
    replaced(
        "stress_ring",
        "rsf_ring.h",
        "return rsf__ring_take_waiting(&ring->consumer_waiting); /* R6 */",
        "return false;",
    ),
    # The serializer.
    *weakened(
        "stress_serial",
        "rsf_serial.h",
        *("rsf_serial_publish", "rsf_serial_peek", "rsf_serial_release", "rsf_serial_reserve"),
        *("rsf_serial_enter", "rsf_serial_enter=rel", "rsf_serial_try_acquire"),
        *("rsf_serial_leave", "rsf_serial_leave=acq"),
        *("rsf_serial_terminal", "rsf_serial_is_cancelled"),
    ),
    *weakened("stress_serial", "rsf_serial.c", "rsf_serial_publish_terminal", "rsf_serial_cancel"),
    replaced(
        "validate_serial",
        "rsf_serial.h",
        "RSF_UNLIKELY(rsf__serial_pending(tail, head) >= serial->capacity)",
        "RSF_UNLIKELY(rsf__serial_pending(tail, head) > serial->capacity)",
    ),
    replaced(
        "stress_serial",
        "rsf_serial.h",
        "RSF_UNLIKELY(rsf__serial_pending(tail, head) >= serial->capacity)",
        "RSF_UNLIKELY(false && head)",
    ),
    replaced("model_serial", "rsf_serial.h", "if (again == tail) {", "if (true || again) {"),
    *(
        replaced("model_serial", "rsf_serial.c", f"if ({look}) {{", f"if (false && {look}) {{")
        for look in ("rsf_serial_is_cancelled(serial)", "rsf__serial_latched(tail)")
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
        "rsf_fetch_add_acq_rel_u64(&serial->wip, 1) != 0",
        "(rsf_fetch_add_acq_rel_u64(&serial->wip, 1), false)",
    ),
    replaced(
        "model_serial",
        "rsf_serial.h",
        "if (before == seen) {",
        "rsf_store_rel_u64(&serial->wip, 0); if (true || before) {",
    ),
    replaced(
        "model_serial",
        "rsf_serial.c",
        "rsf_fetch_or_rlx_u64(&serial->tail, RSF__SERIAL_LATCHED);",
        "rsf_load_rlx_u64(&serial->tail);"
        " rsf_store_rel_u64(&serial->tail, before | RSF__SERIAL_LATCHED);",
    ),
    replaced(
        "validate_serial",
        "rsf_serial.c",
        "return !rsf__serial_latched(before);",
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
        "return rsf__serial_pending(tail, rsf_load_rlx_u64(&serial->head)) >= serial->capacity;",
        "return tail == tail;",
    ),
    replaced(
        "stress_serial",
        "rsf_serial.h",
        "return rsf_exchange_acq_rel_u32(&serial->waiting, 0) != 0; /* R7 */",
        "return false && serial->waiting;",
    ),
]


def planted(mutant: Mutant, number: int, directory: Path) -> Path:
    """A copy of the core with the one change."""
    tree = directory / f"{number:02d}"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(CSRC, tree, ignore=shutil.ignore_patterns("build"))
    (tree / mutant.file).write_text(mutant.text)
    return tree


def first_line_of_interest(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip("= \n")]
    for line in lines:
        if line.startswith(("SUMMARY: Thread", "WARNING: ThreadSanitizer")) or "not hold" in line:
            return line
    return lines[0] if lines else "(no output)"


def hunt(mutant: Mutant, tree: Path, cc: str) -> str | None:
    """How the mutant was caught, or None if it survived every run of its programs."""
    tests = tree / "tests"
    command = [cc, *FLAGS, f"-I{tree}"]
    programs, also = [tests / f"{mutant.program}.c"], tree / "rsf_serial.c"
    arguments, runs = [SECONDS], RUNS if mutant.program.startswith("stress") else 1
    if mutant.tsan:
        command.append("-fsanitize=thread")
    if mutant.modelled:
        command += ['-DRSF_MODEL="machine.h"', f"-I{tests / 'machine'}"]
        programs = sorted((tests / "model").glob(f"{mutant.primitive}_*.c"))
        also, arguments = tests / "machine" / "machine.c", [MODEL_RUNS]
    if mutant.fuzzed:
        command += ["-DRSF_LIBFUZZER", "-fsanitize=fuzzer"]
        arguments = ["-seed=1", f"-max_total_time={FUZZ_SECONDS}", "-verbosity=0"]
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    for program in programs:
        binary = program.with_suffix("")
        subprocess.run([*command, str(program), str(also), "-o", str(binary)], check=True)
        for run in range(1, runs + 1):
            result = subprocess.run(
                [str(binary), *arguments],
                check=False,
                cwd=binary.parent,
                capture_output=True,
                text=True,
                env=environment,
            )
            if result.returncode != 0:
                return f"{binary.name}, run {run}: {first_line_of_interest(result.stderr)}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cc", default="gcc")
    parser.add_argument("--build", type=Path, default=CSRC / "build" / "mutants")
    parser.add_argument("--only", nargs="+", default=[""], help="what their names have in them")
    parser.add_argument("--fuzz", action="store_true", help="the fuzzers' mutants")
    arguments = parser.parse_args()
    mutants = MUTANTS
    if arguments.fuzz:
        mutants = [
            replace(mutant, fuzzed=True)
            for mutant in MUTANTS
            if mutant.program.startswith("validate")
        ]
    mutants = [mutant for mutant in mutants if any(part in mutant.name for part in arguments.only)]

    def one(number: int) -> bool:
        mutant = mutants[number]
        caught = hunt(mutant, planted(mutant, number, arguments.build.resolve()), arguments.cc)
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
