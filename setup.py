"""Builds the compiled backends: the Cython extensions and, where it exists, the cffi module.

Everything else about the project is in ``pyproject.toml``. Two environment variables change the
build, and both are for developers:

``RSTREAMS_FAST_SANITIZE``
    A comma-separated list for ``-fsanitize=`` (``address,undefined``). Build in a copy of the tree:
    such modules load only under the matching ``LD_PRELOAD``.
``RSTREAMS_FAST_SKIP_CYTHON``
    ``1`` builds without the Cython backend, as on PyPy.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
os.chdir(ROOT)  # every path below is relative, as setuptools wants it

CSRC = Path("csrc")
CYTHON_DIR = Path("rstreams_fast/core/_cython")
CFFI_BUILD = Path("rstreams_fast/core/_cffi/_build.py")
HEADERS = ("*.[ch]", "tests/*.[ch]")
#: The compiled part of the C core, and who calls it; the rest is in headers.
C_SOURCES = {"serial": [CSRC / "rsf_serial.c"]}

SANITIZE = os.environ.get("RSTREAMS_FAST_SANITIZE", "")
SKIP_CYTHON = (
    platform.python_implementation() == "PyPy" or os.environ.get("RSTREAMS_FAST_SKIP_CYTHON") == "1"
)

# No -march: a wheel must run on any machine of its platform tag.
UNIX_FLAGS = ["-O3", "-std=c11", "-fvisibility=hidden", "-fno-strict-aliasing"]
MSVC_FLAGS = ["/O2", "/std:c11", "/experimental:c11atomics"]
SANITIZE_FLAGS = [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]


class BuildExt(build_ext):
    """Adds the flags of the compiler in use, and rebuilds when any C header changes."""

    def build_extensions(self) -> None:
        headers = sorted(str(path) for pattern in HEADERS for path in CSRC.glob(pattern))
        msvc = self.compiler.compiler_type == "msvc"
        for ext in self.extensions:
            ext.depends = [*ext.depends, *headers]
            ext.extra_compile_args = [
                *(MSVC_FLAGS if msvc else UNIX_FLAGS),
                *ext.extra_compile_args,
            ]
            if SANITIZE and not msvc:
                ext.extra_compile_args += ["-O1", "-g", *SANITIZE_FLAGS]
                ext.extra_link_args = [*ext.extra_link_args, f"-fsanitize={SANITIZE}"]
        super().build_extensions()


def cython_extensions() -> list[Extension]:
    """One extension per ``.pyx``."""
    pyx_files = sorted(CYTHON_DIR.glob("*.pyx"))
    if SKIP_CYTHON or not pyx_files:
        return []
    from Cython.Build import cythonize

    extensions = [
        Extension(
            name=".".join(pyx.with_suffix("").parts),
            sources=[str(pyx), *map(str, C_SOURCES.get(pyx.stem, []))],
            include_dirs=[str(CSRC)],
        )
        for pyx in pyx_files
    ]
    return cythonize(
        extensions,
        include_path=[str(CSRC)],
        compiler_directives={"language_level": 3, "freethreading_compatible": True},
        show_all_warnings=False,
        quiet="-v" not in sys.argv,
    )


setup(
    ext_modules=cython_extensions(),
    # Without cffi the package is built without that backend.
    **({"cffi_modules": [f"{CFFI_BUILD}:ffibuilder"]} if find_spec("cffi") else {}),
    cmdclass={"build_ext": BuildExt},
)
