"""Checks whether Spark's ``pyspark/worker.py`` has the functions that the daemon replaces."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from typing import Any, Final, cast

__all__ = ["WORKER", "seam_mismatch", "seam_status"]

WORKER: Final = "pyspark.worker"

REPLACED: Final = ("read_udfs", "read_single_udf", "read_command", "chain")
"""Names of functions that the daemon replaces in the globals of ``pyspark.worker``."""

REPORTERS: Final = ("handle_worker_exception", "try_simplify_traceback")
"""The daemon replaces the first existing one of these functions, to shorten tracebacks.

PySpark 3.5 has no ``handle_worker_exception``."""

CALLED: Final = ("fail_on_stopiteration",)
"""Names of functions of ``pyspark.worker`` that the daemon calls without replacing them."""

PER_BATCH: Final = ("_evaluate_batch_udf", "_evaluate_batch_udf_legacy")
"""Names, since PySpark 4.2, of the function that calls a UDF for each row of a batch."""

PER_UDF: Final = "evaluate"
"""Name, before PySpark 4.2, of the function that calls a UDF for each row of a batch."""


def seam_mismatch(source: str | None = None) -> str | None:
    """Return why the daemon cannot replace the functions of ``worker.py``; ``None`` if it can.

    ``source`` is the text of ``worker.py``. Default: the text of this file in the installed Spark.
    """
    if source is None:
        found = find_spec(WORKER)
        loader = cast(Any, found.loader if found is not None else None)
        source = loader.get_source(WORKER) if hasattr(loader, "get_source") else None
        if source is None:
            return "the source of pyspark.worker is not to be had"
    tree = ast.parse(source)
    names = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    names |= functions.keys()
    missing = [name for name in (*REPLACED, *CALLED) if name not in names]
    if names.isdisjoint(REPORTERS):
        missing.append(" or ".join(REPORTERS))
    if "SQL_BATCHED_UDF" not in source or missing:
        return f"worker.py has no {', '.join(missing or ['SQL_BATCHED_UDF'])}"
    if not any(name in functions for name in (*PER_BATCH, PER_UDF)):
        return f"worker.py has neither {PER_BATCH[0]} nor {PER_UDF}"
    if [arg.arg for arg in functions["read_single_udf"].args.args][2:4] != EXPECTED_PARAMETERS:
        return "worker.py's read_single_udf takes other arguments"
    return None


EXPECTED_PARAMETERS: Final = ["eval_type", "runner_conf"]
"""The names that the third and the fourth parameter of ``read_single_udf`` must have."""


def seam_status() -> str:
    """Return a text for ``rstreams-fast info --spark``: whether the daemon fits this PySpark."""
    try:
        mismatch = seam_mismatch()
    except ModuleNotFoundError as missing:
        mismatch = f"{missing.name} is not installed"
    if mismatch is None:
        return "fits: scalar UDFs, plain and Arrow-optimised, where concurrency is asked for"
    return f"runs stock workers: {mismatch}"
