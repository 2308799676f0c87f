"""Threads without an interpreter: the C core, boost and Java, each driven by its own program.

The C and C++ drivers are libraries that ctypes calls (it releases the GIL); the Java one is a
process that does what it is told by lines. What cannot be built or started raises ``Missing`` with
one sentence, and its contestants are left out with it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

__all__ = ["Java", "Missing", "boost", "core", "java"]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "bench"

#: As the extension is built (setup.py).
_FLAGS = ["-O3", "-Wall", "-Werror", "-fno-strict-aliasing", "-shared", "-fPIC", "-pthread"]
_LIMIT = 120  # seconds

Driver = Callable[[int, int], int]


class Missing(Exception):
    """A contestant cannot take part; the text says why."""


@functools.cache
def core(name: str) -> Driver:
    """A function of ``drivers.c``: ``demand``, ``ring_plain``, ..."""
    return _function(_core_library(), name)


@functools.cache
def boost(name: str) -> Driver:
    """A function of ``boost.cpp``, over its ``spsc_queue``: ``ring``, ``ring_in_place``."""
    return _function(_boost_library(), name)


@functools.cache
def _boost_library() -> ctypes.CDLL:
    compiler = os.environ.get("CXX", "g++")
    probe = "#include <boost/lockfree/spsc_queue.hpp>\n"
    try:
        found = subprocess.run(
            [compiler, "-x", "c++", "-fsyntax-only", "-"],
            input=probe,
            text=True,
            capture_output=True,
            timeout=_LIMIT,
            check=False,
        )
    except FileNotFoundError:
        raise Missing(f"there is no C++ compiler ({compiler})") from None
    if found.returncode:
        raise Missing("boost's headers are missing; install them: apt-get install libboost-dev")
    return _library(compiler, "boost", [HERE / "boost.cpp"])


@functools.cache
def java() -> Java:
    """The Java process; one for each of ours."""
    from tests.jvm_tck.maven import CannotBring, Jars, find_java

    try:
        class_path = Jars("the Java peer", HERE, BUILD / "java").bring()
        return Java(find_java(), class_path)
    except CannotBring as reason:
        raise Missing(str(reason)) from None


class Java:
    """``Drivers.java`` at work. It ends when its input does, so with this process at the latest."""

    def __init__(self, executable: Path, class_path: list[Path]) -> None:
        path = os.pathsep.join(map(str, class_path))
        self._process = subprocess.Popen(
            [str(executable), "-Xmx512m", "-XX:+UseSerialGC", "-cp", path, "Drivers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *words: object) -> int:
        """Have it do something; the number that it answers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise Missing(f"the Java driver ended with status {self._process.wait(_LIMIT)}")
        return int(answer)

    def cpu_ns(self) -> int:
        """The processor time that it has taken, in all its threads."""
        return self.ask("cpu")


@functools.cache
def _core_library() -> ctypes.CDLL:
    compiler = os.environ.get("CC", "gcc")
    sources = [HERE / "drivers.c", ROOT / "csrc" / "rsf_serial.c"]
    return _library(compiler, "drivers", sources, ["-std=gnu11"])


def _library(
    compiler: str, name: str, sources: list[Path], flags: list[str] | None = None
) -> ctypes.CDLL:
    """Build it, if a source is newer, and load it."""
    target = BUILD / f"{name}.so"
    inputs = [*sources, *HERE.glob("*.h"), *(ROOT / "csrc").glob("*.h")]
    if not target.exists() or target.stat().st_mtime < max(p.stat().st_mtime for p in inputs):
        BUILD.mkdir(parents=True, exist_ok=True)
        fresh = BUILD / f"{name}.{os.getpid()}.so"
        command = [compiler, *_FLAGS, *(flags or []), f"-I{ROOT / 'csrc'}"]
        try:
            done = subprocess.run(
                [*command, *map(str, sources), "-o", str(fresh)],
                capture_output=True,
                text=True,
                timeout=_LIMIT,
                check=False,
            )
        except FileNotFoundError:
            raise Missing(f"there is no {compiler}") from None
        if done.returncode:
            raise Missing(f"{name} did not build: {done.stderr.strip()[-500:]}")
        fresh.replace(target)
    return ctypes.CDLL(str(target))


def _function(library: ctypes.CDLL, name: str) -> Driver:
    function = getattr(library, name)
    function.restype = ctypes.c_uint64
    function.argtypes = [ctypes.c_uint64, ctypes.c_uint64]

    def call(n: int, setting: int) -> int:
        return int(function(n, setting))

    return call
