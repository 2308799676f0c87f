"""The official kit: its jars, and Java started on them in this process."""

from __future__ import annotations

from pathlib import Path

from tests.jvm_tck.maven import CannotBring as CannotJudge
from tests.jvm_tck.maven import Jars, find_java
from tests.jvm_tck.subjects import ROOT

__all__ = ["KIT", "CannotJudge", "start_jvm"]

HERE = Path(__file__).parent
KIT = Jars("the official kit", HERE, ROOT / "build" / "jvm_tck")
#: A small heap and a simple collector: §3.13 runs a full collection for each class.
JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xmx256m",
    f"-XX:ErrorFile={KIT.build}/crash-%p.log",
)


def start_jvm() -> None:
    """Start Java in this process, with the kit on its class path."""
    import jpype

    jpype.startJVM(
        str(_jvm()),
        *JVM_OPTIONS,
        classpath=[str(path) for path in KIT.bring()],
        convertStrings=False,
    )


def _jvm() -> Path:
    """The library of the Java that was found, not of another one that JPype would prefer."""
    home = find_java().resolve().parents[1]
    for pattern in ("lib/server/libjvm.*", "lib/libjvm.*", "bin/server/jvm.dll"):
        for path in home.glob(pattern):
            return path
    raise CannotJudge(f"{home} has no JVM that can be loaded into a process")
