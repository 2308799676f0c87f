"""Brings jars by their coordinates, checks them against what is pinned, compiles ours to them.

Maven does the bringing, from wherever it is set up to look. What was brought and compiled is kept;
with all of it there, neither Maven nor a network is needed any more.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CannotBring", "Jars", "find_java"]

COMPILER = "ecj-3.33.0.jar"
#: Seconds. A first Maven run also brings Maven's own plugins.
_MAVEN_LIMIT, _COMPILER_LIMIT = 300, 60


class CannotBring(Exception):
    """There is no class path; the text says why, and what would mend it."""


@dataclass(frozen=True)
class Jars:
    """``home`` has ``pom.xml``, ``jars.sha256`` and ``java/*.java``; all else goes to ``build``."""

    what: str  # for complaints: "the official kit"
    home: Path
    build: Path

    @property
    def jars(self) -> Path:
        return self.build / "jars"

    @property
    def classes(self) -> Path:
        return self.build / "classes"

    def pinned(self) -> dict[str, str]:
        """The jars, and the SHA-256 that each must have."""
        lines = (self.home / "jars.sha256").read_text().splitlines()
        return {name: digest for digest, name in map(str.split, lines)}

    def bring(self) -> list[Path]:
        """The class path of the jars and of what is compiled to them, or ``CannotBring``."""
        self.build.mkdir(parents=True, exist_ok=True)
        with self._alone():
            if not all(self._is_right(name, digest) for name, digest in self.pinned().items()):
                self._resolve()
            jars = [self.jars / name for name in self.pinned() if name != COMPILER]
            self._compile(jars)
        return [*jars, self.classes]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time brings and compiles."""
        import fcntl

        with (self.build / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _is_right(self, name: str, digest: str) -> bool:
        path = self.jars / name
        return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == digest

    def _resolve(self) -> None:
        maven = shutil.which("mvn")
        if maven is None:
            raise CannotBring(
                f"{self.what} is brought by Maven, and there is no mvn on this machine; "
                "install it with: apt-get install maven"
            )
        shutil.rmtree(self.jars, ignore_errors=True)
        copy = ["dependency:copy-dependencies", f"-DoutputDirectory={self.jars}"]
        _run([maven, "-B", "-q", "-f", str(self.home / "pom.xml"), *copy], _MAVEN_LIMIT)
        for name, digest in self.pinned().items():
            if not self._is_right(name, digest):
                found = sorted(path.name for path in self.jars.glob("*.jar"))
                shutil.rmtree(self.jars, ignore_errors=True)
                raise CannotBring(f"{name} is not what jars.sha256 pins; Maven brought {found}")

    def _compile(self, jars: list[Path]) -> None:
        sources = sorted((self.home / "java").glob("*.java"))
        if not sources:
            return
        state = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
        stamp = self.build / ".compiled"
        if stamp.exists() and stamp.read_text() == state:
            return
        shutil.rmtree(self.classes, ignore_errors=True)
        path = os.pathsep.join(map(str, jars))
        compiler = [str(find_java()), "-jar", str(self.jars / COMPILER), "-17", "-nowarn"]
        options = ["-cp", path, "-d", str(self.classes)]
        _run([*compiler, *options, *map(str, sources)], _COMPILER_LIMIT)
        stamp.write_text(state)


def find_java() -> Path:
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not Path(found).exists():
        raise CannotBring("there is no Java on this machine; install a Java 17 or 21")
    return Path(found)


def _run(command: list[str], limit: int) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise CannotBring(f"{Path(command[0]).name} failed: " + "\n".join(said[-10:]))
