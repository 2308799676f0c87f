"""Builds ``_floors`` beside this file: ``python bench/floors/build.py``."""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    os.chdir(ROOT)
    source = "bench/floors/_floors.c"
    setup(
        name="rstreams-fast-floors",
        packages=[],
        py_modules=[],
        script_args=["-q", "build_ext", "--inplace", "--build-temp", "build/floors"],
        ext_modules=[
            Extension(
                "bench.floors._floors",
                [source],
                include_dirs=["csrc"],
                depends=[str(header) for header in Path("csrc").glob("*.h")],
                extra_compile_args=["-O3", "-std=gnu11"],
            )
        ],
    )


if __name__ == "__main__":
    main()
