"""How a backend is chosen. Each choice is made once, so each test asks a process of its own."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from typing import Any, get_args, get_origin

import pytest

from tests.core.conftest import BACKENDS, CLASSES, load
from tests.helpers import run_python
from tests.rules.probes import Plain


def run(program: str, backend: str | None) -> subprocess.CompletedProcess[str]:
    return run_python(
        "-W", "error", "-c", program, env={"RSTREAMS_FAST_BACKEND": backend}, check=False
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_environment_chooses(backend: str) -> None:
    program = (
        "from rstreams_fast import core; import rstreams_fast;"
        f"import {load(backend).__name__} as module;"
        f"assert all(getattr(core, n) is getattr(module, n) for n in {CLASSES});"
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
    assert "BackendUnavailableError" in done.stderr
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


def test_a_name_is_looked_for_once_and_an_unknown_one_is_an_attribute_error(core: Any) -> None:
    assert all(getattr(core, name) is vars(core)[name] for name in CLASSES)
    with pytest.raises(AttributeError, match="nonsense"):
        core.nonsense  # noqa: B018


@pytest.mark.parametrize("name", CLASSES)
def test_the_backends_have_one_face(core: Any, name: str) -> None:
    def face(cls: type) -> set[str]:
        return {n for n in dir(cls) if not n.startswith("_")}

    specification, ours = getattr(load("python"), name), getattr(core, name)
    instance_attributes = {
        "CallWindow": {"failure", "max_pending", "max_running", "on_further_failure", "started"},
        "FusedRun": {"error", "pulled", "refund"},
    }.get(name, set())
    assert face(ours) | instance_attributes == face(specification) | instance_attributes
    assert ours.__doc__ == specification.__doc__
    assert [n for n in face(ours) - instance_attributes if not getattr(ours, n).__doc__] == []


@pytest.mark.skipif(
    not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled(),
    reason="this interpreter has a GIL",
)
def test_the_gil_stays_off() -> None:
    done = run("import sys, rstreams_fast.core; print(sys._is_gil_enabled())", "c")
    assert done.stdout.strip() == "False"


def signature_of(function: Any) -> tuple[bool, str]:
    parameters = inspect.signature(function).parameters.values()
    bare = inspect.Signature([each.replace(annotation=each.empty) for each in parameters])
    return inspect.iscoroutinefunction(function), str(bare)


@pytest.mark.parametrize("name", CLASSES)
def test_the_backends_take_the_same_arguments(core: Any, name: str) -> None:
    """What they are made of, which compiled classes do not tell, is tried wherever they are."""
    specification, ours = getattr(load("python"), name), getattr(core, name)
    for method in (n for n in dir(specification) if not n.startswith("_")):
        function = inspect.getattr_static(specification, method)
        if inspect.isfunction(function):
            theirs = inspect.getattr_static(ours, method)
            assert signature_of(theirs) == signature_of(function), method


@pytest.mark.parametrize("name", ["BurstIterator", "SignalSerializer", "SpscRing"])
def test_what_holds_elements_may_be_told_their_type(core: Any, name: str) -> None:
    cls = getattr(core, name)
    assert get_origin(cls[int]) is cls
    assert get_args(cls[int]) == (int,)


@pytest.mark.skipif("cffi" not in BACKENDS, reason="there is no cffi for this interpreter")
@pytest.mark.skipif(sys.implementation.name != "cpython", reason="cffi is a part of it")
def test_without_cffi_the_package_works_and_its_backend_names_the_extra() -> None:
    program = "import sys; sys.modules['_cffi_backend'] = sys.modules['cffi'] = None; {}"
    assert run(program.format("import rstreams_fast"), None).returncode == 0
    done = run(program.format("import rstreams_fast"), "cffi")
    assert done.returncode != 0
    assert "BackendUnavailableError: the backend 'cffi' needs the package cffi" in done.stderr
    assert "pip install 'rstreams_fast[cffi]'" in done.stderr


SUBCLASSED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "DemandCounter": ((3,), {}),
    "RecordRing": (("i4",), {"capacity": 3}),
    "SpscRing": ((), {"capacity": 3}),
    "SignalSerializer": ((Plain(),), {"capacity": 3}),
}


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("name", [*SUBCLASSED, "BurstIterator", "FusedRun", "Latch", "Wip"])
def test_a_live_object_is_not_copied(core: Any, name: str, duplicate: Any) -> None:
    run = ((), (), print, core.DemandCounter()), dict[str, Any]()
    arguments, options = SUBCLASSED.get(name, run if name == "FusedRun" else ((), {}))
    with pytest.raises(TypeError, match="live object"):
        duplicate(getattr(core, name)(*arguments, **options))


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


@pytest.mark.parametrize(
    ("name", "argument", "attribute", "value"),
    [("DemandCounter", 5, "pending", 5), ("Wip", True, "missed", 1)],
)
def test_a_subclass_may_take_arguments_of_its_own(
    core: Any, name: str, argument: Any, attribute: str, value: int
) -> None:
    base: Any = getattr(core, name)

    class Named(base):
        def __init__(self, name: str) -> None:
            super().__init__(argument)
            self.name = name

    assert getattr(Named("orders"), attribute) == value
