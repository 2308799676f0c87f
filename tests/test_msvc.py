"""The C core's atomics for MSVC, run by clang, which has Microsoft's intrinsics built in.

MSVC itself runs on Windows alone: there the release workflow builds the package with it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[1] / "csrc"
PROGRAMS = [
    pytest.param(path.stem, marks=[pytest.mark.slow] * path.stem.startswith("stress"))
    for path in sorted((CSRC / "tests").glob("*_*.c"))
]
#: To the sources the compiler is MSVC for x64.
AS_MSVC = ["-U__clang__", "-D_MSC_VER=1940", "-D_M_X64=1", "-fms-extensions"]
#: The system's headers do not declare the intrinsics, and take `long` for 64 bits.
TOLERATED = ["-Wno-implicit-function-declaration", "-Wno-incompatible-pointer-types"]


@pytest.mark.skipif(shutil.which("clang") is None, reason="needs clang")
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_c_core_keeps_its_promises_on_msvcs_atomics(program: str, tmp_path: Path) -> None:
    (tmp_path / "intrin.h").touch()
    sources = [str(CSRC / "tests" / f"{program}.c"), str(CSRC / "rsf_serial.c")]
    built = str(tmp_path / program)
    places = ["-I", str(CSRC), "-I", str(tmp_path)]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-pthread", "-Wall", "-Werror"]
    command = ["clang", *AS_MSVC, *flags, *TOLERATED, *places, *sources, "-o", built]
    subprocess.run(command, check=True, timeout=60)
    subprocess.run([built], check=True, timeout=60)
