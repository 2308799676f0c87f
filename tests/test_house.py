"""The house itself: what may be imported where, what is said of it, how set-up asks or mends."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rstreams_fast
from rstreams_fast.streams import factories
from tests.helpers import DEADLINE, run_python

ROOT = Path(__file__).resolve().parents[1]
HEAVY = (
    "aiohttp",
    "cffi",
    "matplotlib",
    "numpy",
    "pandas",
    "pyarrow",
    "pyspark",
    "reactivex",
    "rich",
)


# ---- What may be imported where -----------------------------------------------------------------


def test_csrc_knows_no_python() -> None:
    files = sorted((ROOT / "csrc").glob("*.[ch]"))
    assert files
    for file in files:
        assert not re.search(r"include\s*[<\"]Python\.h|\bPy[A-Z_]\w*", file.read_text()), file


@pytest.mark.parametrize("module", ["rstreams_fast", "rstreams_fast.core", "rstreams_fast.spark"])
def test_import_is_light_and_starts_no_thread(module: str) -> None:
    """Nothing heavy, no thread, and the same with the heavy neighbours not installed at all."""
    code = f"""
import sys, threading
heavy = {HEAVY!r}
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in heavy:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import {module}
assert threading.active_count() == 1, threading.enumerate()
assert not [name for name in heavy if name in sys.modules]
"""
    run_python("-c", code, env={"RSTREAMS_FAST_BACKEND": "c"})


def test_unknown_backend_is_refused_by_name() -> None:
    done = run_python(
        "-c", "import rstreams_fast", env={"RSTREAMS_FAST_BACKEND": "rust"}, check=False
    )
    assert done.returncode != 0
    assert "'rust'" in done.stderr
    assert "c, cffi, python" in done.stderr


# ---- What is said about it ----------------------------------------------------------------------


def test_version_is_said_once() -> None:
    assert importlib.metadata.version("rstreams_fast") == rstreams_fast.__version__


def test_every_public_name_is_there_and_documented() -> None:
    assert len(set(rstreams_fast.__all__)) == len(rstreams_fast.__all__)
    for name in rstreams_fast.__all__:
        public = getattr(rstreams_fast, name)
        if callable(public):
            assert (getattr(public, "__doc__", None) or "").strip(), f"{name} has no docstring"


def test_typed_marker_is_shipped() -> None:
    assert (Path(rstreams_fast.__file__).parent / "py.typed").exists()


def test_the_types_of_the_whole_public_face_are_checked() -> None:
    """``make lint`` has mypy and pyright read the file, which leaves no name out. Of operators and
    sources tests/operators/test_table.py looks.
    """
    face = (ROOT / "tests/typing/public_face.py").read_text(encoding="utf-8")
    missing = [
        f"rsf.{name}"
        for name in rstreams_fast.__all__
        if name not in factories.__all__ and not re.search(rf"\brsf\.{name}\b", face)
    ]
    assert not missing


def test_a_method_of_a_stream_is_in_the_file_of_its_heading() -> None:
    """Each heading of the reference has a file, and each file a heading."""
    page = (ROOT / "docs/reference/stream.md").read_text(encoding="utf-8")
    files = []
    for heading in page.split("\n## ")[1:]:
        names = set(re.findall(r"^::: rstreams_fast\.Stream\.(\w+)$", heading, re.MULTILINE))
        homes = {getattr(rstreams_fast.Stream, name).__module__ for name in names - {"subscribe"}}
        assert len(homes) == 1, (heading, homes)
        files.append(homes.pop().removeprefix("rstreams_fast.streams."))
    assert len(set(files)) == len(files)
    there = {path.stem for path in (ROOT / "rstreams_fast/streams/methods").glob("[a-z]*.py")}
    assert {f"methods.{name}" for name in there - {"composing"}} | {"stream"} == set(files)


def test_make_help_is_short() -> None:
    said = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    ).stdout
    targets = re.findall(r"^  make ([a-z-]+) +\S", said, re.MULTILINE)
    assert {"demo", "test", "full"} <= set(targets)
    assert len(targets) <= 12


# ---- How set-up mends or asks -------------------------------------------------------------------

TOOLS = ["bash", "cat", "cksum", "dirname", "find", "flock", "grep", "id", "mkdir", "mv", "sed"]
TOOLS += ["sort", "tail", "xargs"]
DONE = "exit 0"
READ = "cat >/dev/null"


class Machine:
    """A copy of ``.ci/setup`` on a PATH of its own, for a user who is not root."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for name in TOOLS:
            self.program(f"bin/{name}", f'exec {shutil.which(name)} "$@"')
        self.program("bin/id", "echo 1000")
        self.program("checkout/.ci/setup", "").write_bytes((ROOT / ".ci/setup").read_bytes())
        for name in ("pyproject.toml", "setup.py", "csrc/a.h", "rstreams_fast/a", "bench/floors/a"):
            self.program(f"checkout/{name}", "")

    def program(self, name: str, body: str) -> Path:
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def has_python(self) -> None:
        for name in ("bin/python3", "checkout/.venv/bin/python"):
            self.program(name, DONE)

    def has_java(self, name: str, modules: str) -> None:
        home = self.place / name
        said = f"case $1 in --list-modules) echo {modules} ;; *) echo java.home = {home} ;; esac"
        self.program(f"{name}/bin/java", said)

    def set_up(self, **environment: str) -> subprocess.CompletedProcess[str]:
        environment |= {"PATH": f"{self.place}/bin", "JVM_DIR": f"{self.place}/jvm"}
        return subprocess.run(
            [self.place / "checkout/.ci/setup", "test", "require"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )

    def refusal(self) -> str:
        done = self.set_up()
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stderr.splitlines()[-1]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if sys.platform == "win32":
        pytest.skip("set-up by make is for POSIX systems")
    return Machine(tmp_path)


def test_set_up_says_what_is_missing_and_how_to_install_it(machine: Machine) -> None:
    sentence = machine.refusal()
    assert "Python 3.11 or later with its venv module and headers is needed" in sentence
    assert "sudo apt-get install python3 python3-venv python3-dev" in sentence
    machine.has_python()
    sentence = machine.refusal()
    assert "a C compiler that works is needed" in sentence
    assert "sudo apt-get install build-essential" in sentence
    machine.program("bin/gcc", READ)
    sentence = machine.refusal()
    assert "Spark needs Java 17 or 21" in sentence
    assert "sudo apt-get install default-jre-headless" in sentence


@pytest.mark.parametrize(
    ("modules", "fits"),
    [
        ("jdk.incubator.vector@17.0.9", True),
        ("jdk.incubator.vector@21", True),
        ("jdk.incubator.vector@11.0.2", False),
        ("jdk.incubator.vector@25", False),
        ("java.sql@17.0.9", False),  # cut down by jlink
    ],
)
def test_set_up_takes_a_java_that_spark_runs_on(machine: Machine, modules: str, fits: bool) -> None:
    machine.has_python()
    machine.program("bin/gcc", READ)
    machine.has_java("jvm/other", "jdk.incubator.vector@8")
    machine.has_java("jvm/this", modules)
    if not fits:
        assert "Spark needs Java 17 or 21" in machine.refusal()
        return
    done = machine.set_up()
    assert done.returncode == 0, done.stderr
    told = (machine.place / "checkout/build/env.sh").read_text()
    assert f"JAVA_HOME='{machine.place}/jvm/this'" in told
    assert "SPARK_LOCAL_IP=127.0.0.1" in told


def test_root_installs_what_is_missing(machine: Machine) -> None:
    """What apt-get does is recorded here, not done. The default Java may be too new."""
    machine.has_python()
    machine.has_java("kept", "jdk.incubator.vector@21")
    machine.program("bin/id", "echo 0")
    machine.program("bin/gcc", READ)
    machine.program(
        "bin/apt-get",
        f"""cd {machine.place}
for last in "$@"; do :; done
echo "$last" >>calls
[ "$last" != openjdk-21-jre-headless ] || {shutil.which("cp")} -R kept jvm""",
    )
    (machine.place / "jvm").mkdir()
    done = machine.set_up()
    assert done.returncode == 0, done.stderr
    installed = [name for name in (machine.place / "calls").read_text().split() if name[0] != "-"]
    assert installed == ["default-jre-headless", "openjdk-21-jre-headless"]


# ---- What the measurements rest on --------------------------------------------------------------


@pytest.mark.slow
def test_who_is_measured_brings_everything_in_order() -> None:
    """Speed is not judged here; that ours and the floors do the same work is. `make bench-check`
    runs the peers too.
    """
    run_python("bench/floors/build.py", cwd=ROOT)
    code = """
from bench.drivers import Missing
from bench.groups import GROUPS
for group in GROUPS:
    for contestant in group.contestants:
        if contestant.check is not None and contestant.role != "peer":
            try:
                contestant.check()
                print(group.name, contestant.name)
            except Missing as reason:
                print(group.name, contestant.name, "is left out:", reason)
"""
    done = run_python("-c", code, cwd=ROOT)
    for group in ("fused", "fused-c", "boundary", "boundary-65536"):
        assert f"{group} ours\n" in done.stdout
