"""How a backend is chosen. Each choice is made once, so each test asks a process of its own."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rstreams_fast.core as core_package
from tests.core.conftest import BACKENDS, load
from tests.helpers import run_python

NAMES = (
    "Baton",
    "BurstIterator",
    "CallWindow",
    "DemandCounter",
    "FusedRun",
    "RecordRing",
    "SignalSerializer",
    "SpscRing",
)


def run(program: str, backend: str | None) -> subprocess.CompletedProcess[str]:
    return run_python(
        "-W", "error", "-c", program, env={"RSTREAMS_FAST_BACKEND": backend}, check=False
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_environment_chooses(backend: str) -> None:
    program = (
        "from rstreams_fast import core; import rstreams_fast;"
        f"import {load(backend).__name__} as module;"
        f"assert all(getattr(core, n) is getattr(module, n) for n in {NAMES});"
        "assert rstreams_fast.backend == core.backend; print(core.backend)"
    )
    done = run(program, backend)
    assert done.stderr == ""
    assert done.stdout.strip() == backend


@pytest.mark.parametrize("unset", [None, ""])
def test_without_a_choice_it_is_the_compiled_one(unset: str | None) -> None:
    done = run("from rstreams_fast import core; print(core.backend)", unset)
    expected = "c" if sys.implementation.name == "cpython" else "cffi"
    assert done.stdout.strip() == expected, done.stderr


@pytest.mark.parametrize("unknown", ["C", "rust", "c,python"])
def test_an_unknown_backend_is_refused(unknown: str) -> None:
    done = run("import rstreams_fast", unknown)
    assert done.returncode != 0
    assert f"RSTREAMS_FAST_BACKEND='{unknown}' is unknown" in done.stderr
    assert "c, cffi, python" in done.stderr


@pytest.mark.parametrize(
    ("backend", "missing"),
    [("c", "rstreams_fast.core._cython.ring"), ("cffi", "rstreams_fast.core._cffi._raw")],
)
def test_a_backend_that_is_not_built_says_how_to_build_it(backend: str, missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; import rstreams_fast"
    done = run(program, backend)
    assert done.returncode != 0
    assert "BackendUnavailable" in done.stderr
    assert f"the backend '{backend}' is not built" in done.stderr
    assert "pip install ." in done.stderr
    other = run(program, "python")  # another one does not need it
    assert other.returncode == 0, other.stderr


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_heavy_is_imported_and_no_thread_started(backend: str) -> None:
    program = (
        "import sys, threading; import rstreams_fast.core;"
        "heavy = {'asyncio', 'numpy', 'pyarrow', 'pyspark', 'pandas', 'multiprocessing'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules);"
        "assert threading.active_count() == 1;"
        "rstreams_fast.core.CallWindow;"
        "assert 'asyncio' in sys.modules"
    )
    done = run(program, backend)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_unknown_name_is_an_attribute_error(backend: str) -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        load(backend).nonsense  # noqa: B018


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_the_backends_have_one_face(backend: str, name: str) -> None:
    def face(cls: type) -> set[str]:
        return {n for n in dir(cls) if not n.startswith("_")}

    specification = getattr(load("python"), name)
    ours = getattr(load(backend), name)
    instance_attributes = {
        "CallWindow": {"failure", "max_pending", "max_running", "started"},
        "FusedRun": {"error", "pulled", "refund"},
    }.get(name, set())
    assert face(ours) | instance_attributes == face(specification) | instance_attributes
    assert ours.__doc__


@pytest.mark.skipif(
    not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled(),
    reason="this interpreter has a GIL",
)
def test_the_gil_stays_off() -> None:
    done = run("import sys, rstreams_fast.core; print(sys._is_gil_enabled())", "c")
    assert done.stdout.strip() == "False"


STUBS = {
    "Baton": "baton",
    "BurstIterator": "bursts",
    "CallWindow": "window",
    "DemandCounter": "demand",
    "FusedRun": "fused",
    "RecordRing": "records",
    "SignalSerializer": "serial",
    "SpscRing": "ring",
}


def stub_of(name: str) -> dict[str, tuple[bool, str]]:
    """From the stub of a compiled class: each method's kind and parameters, as they are written."""
    path = Path(core_package.__file__).parent / "_cython" / f"{STUBS[name]}.pyi"
    (cls,) = (
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    return {
        node.name: (isinstance(node, ast.AsyncFunctionDef), bare(node.args))
        for node in cls.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def bare(arguments: ast.arguments) -> str:
    some = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    for argument in (*some, arguments.vararg, arguments.kwarg):
        if argument is not None:
            argument.annotation = None
    return f"({ast.unparse(arguments)})"


def signature_of(function: Any) -> tuple[bool, str]:
    function = getattr(function, "fget", function)
    signature = inspect.signature(function)
    parameters = [
        each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()
    ]
    written = str(inspect.Signature(parameters))
    (definition,) = ast.parse(f"def f{written}: ...").body
    assert isinstance(definition, ast.FunctionDef)
    return inspect.iscoroutinefunction(function), bare(definition.args)


@pytest.mark.parametrize("name", NAMES)
def test_the_backends_take_the_same_arguments(name: str) -> None:
    """The Cython classes as their stubs say; that those are true, every other test shows."""
    specification = getattr(load("python"), name)
    stub = stub_of(name)
    for method in ("__init__", *(n for n in dir(specification) if not n.startswith("_"))):
        function = inspect.getattr_static(specification, method, None)
        if not callable(function) and not isinstance(function, property):
            continue  # a slot
        expected = signature_of(function)
        assert stub[method] == expected, method
        if "cffi" in BACKENDS:
            raw = inspect.getattr_static(getattr(load("cffi"), name), method, function)
            theirs = signature_of(raw)
            assert theirs == expected or "**options" in theirs[1], method  # or it hands all on


class Subscriber:
    def on_subscribe(self, subscription: Any) -> None: ...
    def on_next(self, element: Any) -> None: ...
    def on_error(self, error: BaseException) -> None: ...
    def on_complete(self) -> None: ...


SUBCLASSED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "Baton": ((0.0,), {}),
    "DemandCounter": ((3,), {}),
    "RecordRing": (("i4",), {"capacity": 3}),
    "SpscRing": ((), {"capacity": 3}),
    "SignalSerializer": ((Subscriber(),), {"capacity": 3}),
}


@pytest.mark.parametrize("name", SUBCLASSED)
def test_a_subclass_may_pass_on_what_it_is_made_of(core: Any, name: str) -> None:
    arguments, options = SUBCLASSED[name]
    seen: list[Any] = []
    base: Any = getattr(core, name)

    class Named(base):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            seen.append((arguments, options))

    assert isinstance(Named(*arguments, **options), base)
    assert seen == [(arguments, options)]
