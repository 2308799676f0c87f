"""The house itself: what may be imported where, what is said of it, how set-up mends or asks."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import rstreams_fast
from tests.helpers import run_python

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
    """``make lint`` has mypy and pyright read the file; here it is that it leaves nothing out."""
    face = (ROOT / "tests/typing/public_face.py").read_text(encoding="utf-8")
    stream = rstreams_fast.Stream
    streams = [name for cls in (stream, *stream.__bases__) for name in vars(cls) if name[0] != "_"]
    missing = [
        f"rsf.{name}" for name in rstreams_fast.__all__ if not re.search(rf"\brsf\.{name}\b", face)
    ]
    missing += [f".{name}" for name in streams if f".{name}(" not in face]
    assert not missing


def test_make_help_names_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE))
    said = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    ).stdout
    assert targets == set(re.findall(r"^  make ([a-z-]+) +\S", said, re.MULTILINE))
    assert {"demo", "test", "bench", "sanitize", "clean", "help"} <= targets


# ---- How set-up mends or asks -------------------------------------------------------------------

TOOLS = [
    "awk",
    "basename",
    "cat",
    "chmod",
    "cksum",
    "cp",
    "dirname",
    "env",
    "find",
    "flock",
    "grep",
    "mkdir",
    "mktemp",
    "mv",
    "printf",
    "readlink",
    "rm",
    "sed",
    "sh",
    "sort",
    "tail",
    "touch",
    "xargs",
]
COMPILERS = ("as", "cc", "gcc", "ld")


class Machine:
    """A machine made of a PATH of its own, on which a copy of ``.ci/setup`` runs."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "checkout"
        self.bin = tmp_path / "bin"
        self.jvm = tmp_path / "jvm"
        for directory in (self.root / ".ci", self.root / ".venv", self.bin, self.jvm):
            directory.mkdir(parents=True)
        shutil.copy(ROOT / ".ci/setup", self.root / ".ci/setup")
        self.link(TOOLS)
        self.is_root(False)

    def link(self, names: Iterable[str]) -> None:
        for name in names:
            if found := shutil.which(name):
                (self.bin / name).symlink_to(found)

    def script(self, path: Path, body: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def is_root(self, root: bool) -> None:
        self.script(self.bin / "id", f"echo {0 if root else 1000}")

    def has_apt(self, body: str = "exit 0") -> None:
        self.script(self.bin / "apt-get", body)

    def has_python(self, *, patch: str = "") -> None:
        """This interpreter as ``python3``; ``patch`` is run before whatever it is asked to run."""
        site = self.root.parent / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(patch)
        self.script(self.bin / "python3", f'PYTHONPATH="{site}" exec "{sys.executable}" "$@"')

    def java(self, directory: Path, version: str, *, modules: str = "jdk.incubator.vector") -> Path:
        """A Java runtime that says what Spark's launcher would learn from it."""
        body = f"""case $1 in
--list-modules) echo java.base@{version}; echo {modules}@{version} ;;
*) printf '    java.home = %s\\n    java.specification.version = {version}\\n' '{directory}' >&2 ;;
esac"""
        return self.script(directory / "bin" / "java", body)

    def setup(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.root / ".ci/setup"), *arguments],
            env={
                "PATH": str(self.bin),
                "JVM_DIR": str(self.jvm),
                "TMPDIR": str(self.root),
                **environment,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def environment(self) -> str:
        return (self.root / "build/env.sh").read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if sys.platform == "win32":
        pytest.skip("set-up by make is for POSIX systems")
    return Machine(tmp_path)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a set-up that stopped."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_no_python(machine: Machine) -> None:
    machine.has_apt()
    sentence = refused(machine.setup("demo"))
    assert "Python 3.11 or later is needed, and python3 is not to be found" in sentence
    assert "sudo apt-get install python3 python3-venv python3-dev" in sentence


def test_too_old_a_python(machine: Machine) -> None:
    machine.has_apt()
    machine.script(
        machine.bin / "python3", '[ "$1" = --version ] && echo Python 3.9.2 && exit 0; exit 1'
    )
    assert "python3 is Python 3.9.2" in refused(machine.setup("demo"))


def without_headers() -> str:
    return (
        "import sysconfig\nreal = sysconfig.get_path\n"
        "sysconfig.get_path = lambda name, *rest, **more: '/nowhere' if name == 'include'"
        " else real(name, *rest, **more)\n"
    )


def without_venv() -> str:
    return "import sys\nsys.modules['ensurepip'] = None\n"


@pytest.mark.parametrize(
    ("patch", "compilers", "missing"),
    [
        (without_headers, True, {"the Python headers": "-dev"}),
        (without_venv, True, {"Python's venv module": "-venv"}),
        (str, False, {"a working C compiler": "build-essential"}),
        (without_headers, False, {"the Python headers": "-dev", "a working C": "build-essential"}),
    ],
    ids=["headers", "venv", "compiler", "headers and compiler"],
)
def test_missing_pieces(
    machine: Machine, patch: Callable[[], str], compilers: bool, missing: dict[str, str]
) -> None:
    """Everything that is missing, and one command for all of it."""
    machine.has_apt()
    machine.has_python(patch=patch())
    if compilers:
        machine.link(COMPILERS)
    sentence = refused(machine.setup("demo"))
    what, _, command = sentence.partition("; install with: ")
    assert command.startswith("sudo apt-get install ")
    assert what.count(",") == len(missing) - 1
    assert len(command.split()) == 3 + len(missing)
    for piece, package in missing.items():
        assert piece in what
        assert package in command


def test_java_of_java_home(machine: Machine) -> None:
    home = machine.java(machine.root.parent / "java21", "21").parents[1]
    done = machine.setup("none", "require", JAVA_HOME=str(home))
    assert done.returncode == 0, done.stderr
    assert f"JAVA_HOME='{home}'" in machine.environment()
    assert "SPARK_LOCAL_IP=127.0.0.1" in machine.environment()


def test_java_is_found_where_debian_puts_it(machine: Machine) -> None:
    """A java of the wrong version first on the PATH does not hide the right one."""
    machine.java(machine.root.parent / "java11", "11")
    machine.link([])
    (machine.bin / "java").symlink_to(machine.root.parent / "java11/bin/java")
    machine.java(machine.jvm / "java-17", "17")
    assert machine.setup("none", "require").returncode == 0
    assert f"JAVA_HOME='{machine.jvm / 'java-17'}'" in machine.environment()


@pytest.mark.parametrize("version", ["1.8", "11", "25"])
def test_java_of_another_version_is_refused(machine: Machine, version: str) -> None:
    machine.has_apt()
    java = machine.java(machine.jvm / "java", version)
    sentence = refused(machine.setup("none", "require"))
    assert f"{java} is Java {version}, and Spark needs 17 or 21" in sentence
    assert "sudo apt-get install default-jre-headless" in sentence


def test_cut_down_java_is_refused(machine: Machine) -> None:
    machine.java(machine.jvm / "java", "17", modules="java.sql")
    sentence = refused(machine.setup("none", "require"))
    assert "without the module jdk.incubator.vector" in sentence


def test_tests_go_on_without_java(machine: Machine) -> None:
    done = machine.setup("none", "prefer")
    assert done.returncode == 0
    assert done.stderr.startswith(
        "rstreams_fast: the Spark tests will be skipped: there is no Java"
    )
    assert len(done.stderr.splitlines()) == 1
    assert "export RSTREAMS_FAST_NO_JAVA=" in machine.environment()


def test_root_installs_the_first_java_that_will_do(machine: Machine) -> None:
    """The default one may be too new; what apt-get does is recorded here, not done."""
    machine.is_root(True)
    fits = machine.root.parent / "kept"
    machine.java(fits, "21")
    machine.has_apt(
        f"""echo "$*" >>'{machine.root}/apt-calls'
case "$*" in *openjdk-21*) cp -R '{fits}' '{machine.jvm}/java-21' ;; esac"""
    )
    done = machine.setup("none", "require")
    assert done.returncode == 0, done.stderr
    calls = (machine.root / "apt-calls").read_text().splitlines()
    assert calls[0].startswith("update")
    assert [call.split()[-1] for call in calls[1:]] == [
        "default-jre-headless",
        "openjdk-21-jre-headless",
    ]


def test_nobody_else_installs_anything(machine: Machine) -> None:
    machine.has_apt(f"touch '{machine.root}/called'")
    machine.script(machine.bin / "sudo", f"touch '{machine.root}/called'")
    refused(machine.setup("none", "require"))
    assert not (machine.root / "called").exists()


# ---- What the measurements rest on --------------------------------------------------------------


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
