"""Replaces parts of ``pyspark.worker``, so that the calls of scalar UDFs overlap.

The *stock code* is Spark's own code. The *seam* is the set of functions that replace parts of it.
For a plain UDF the stock function ``read_single_udf`` returns a function that calls the UDF, but
the seam returns a function that only submits the call. So the rows of the stock code contain calls
(``UdfCall``), and the seam replaces each call by its result, in order. For an Arrow-optimised UDF
several threads run the stock code, each for one batch; there the seam replaces the function that
calls the UDF for the rows of a batch. For a scalar pandas or Arrow UDF several threads run the
stock code if ``BATCHES`` exceeds 1. Every conversion, check and error message is Spark's own.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CellType, TracebackType
from typing import Any, Final

from rstreams_fast._checks import is_coroutine_function
from rstreams_fast.calls.functions import label_of
from rstreams_fast.calls.settings import DEFAULT_CONCURRENCY
from rstreams_fast.spark.daemon.admission import Abandoned, Admission
from rstreams_fast.spark.daemon.calls import (
    CallSubmitter,
    LoopCalls,
    ThreadCalls,
    batches_in_order,
    rows_in_order,
)
from rstreams_fast.spark.daemon.compare import compared_rows, report_difference, report_failure
from rstreams_fast.spark.daemon.seam_check import PER_BATCH, PER_UDF, REPLACED, REPORTERS
from rstreams_fast.spark.daemon.steps import Step
from rstreams_fast.spark.daemon.task_metrics import TaskMetrics
from rstreams_fast.spark.options import MAX_DEFAULT_PENDING, PENDING_PER_CALL
from rstreams_fast.spark.worker.shared_variables import make_shared_variables_thread_safe

__all__ = ["BATCHES", "CONCURRENCY", "METRICS", "install"]

CONCURRENCY: Final = "RSTREAMS_FAST_UDF_CONCURRENCY"
"""Environment variable of executors: the most calls of scalar UDFs that a task makes at once."""

BATCHES: Final = "RSTREAMS_FAST_UDF_BATCHES"
"""Environment variable: how many batches of scalar pandas or Arrow UDFs a task runs at once."""

METRICS: Final = "RSTREAMS_FAST_UDF_METRICS"
"""Environment variable: the directory to which tasks with overlapping calls write metrics."""

RESULT_BYTES: Final = "RSTREAMS_FAST_UDF_RESULT_BYTES"
"""Environment variable: the most bytes of results that a task of plain UDFs holds; 0: no limit."""

DEFAULT_RESULT_BYTES: Final = 64 << 20

ONE_AT_A_TIME: Final = "RSTREAMS_FAST_UDF_ONE_AT_A_TIME"
"""Environment variable: names of functions whose calls must not overlap, separated by commas."""

COMPARE: Final = "RSTREAMS_FAST_UDF_COMPARE"
"""Environment variable: for how many first rows UDFs are also called one by one, to compare. UDFs
that are called once per batch are not compared."""

SPARK_CONCURRENCY_CONF: Final = "spark.sql.execution.pythonUDF.arrow.concurrency.level"

MOST_BATCH_THREADS: Final = 32

ROWS_PER_WAKE_UP: Final = 512

BATCH_UDF_TYPES: Final = ("SQL_SCALAR_PANDAS_UDF", "SQL_SCALAR_ARROW_UDF")
"""Spark's names for UDFs that are called once per batch. The second exists since Spark 4.1."""

STOCK_MODULES: Final = ("pyspark.worker", "pyspark.util")
"""Spark's modules whose functions wrap the user's function, and keep it in a closure variable."""

DAEMON_FOLDER: Final = str(Path(__file__).parent)

Function = Callable[..., Any]


def install() -> bool:
    """Replace functions of ``pyspark.worker``. Return ``False`` if they were replaced before."""
    from pyspark import worker

    if isinstance(getattr(worker.read_udfs, "__self__", None), _Seam):
        return False
    seam = _Seam(worker)
    for name in (*REPLACED, seam.error_reporter_name):
        setattr(worker, name, getattr(seam, name))
    return True


class _Seam:
    """The methods replace functions of ``pyspark.worker``, and call the functions they replace."""

    def __init__(self, worker: Any) -> None:
        self._read_udfs = worker.read_udfs
        self._read_single_udf = worker.read_single_udf
        self._read_command = worker.read_command
        self._chain = worker.chain
        #: The name of the function of ``pyspark.worker`` that reports an exception to the JVM. The
        #: seam's replacement removes the frames of the daemon's modules from the traceback.
        self.error_reporter_name = next(name for name in REPORTERS if hasattr(worker, name))
        self._report_error = getattr(worker, self.error_reporter_name)
        self._fail_on_stopiteration = worker.fail_on_stopiteration
        self._plain_type = worker.PythonEvalType.SQL_BATCHED_UDF
        self._arrow_type = worker.PythonEvalType.SQL_ARROW_BATCHED_UDF
        self._batch_types = {
            getattr(worker.PythonEvalType, name, self._arrow_type) for name in BATCH_UDF_TYPES
        } - {self._arrow_type}
        self._task: _Task | None = None
        self._modules = len(sys.modules)

    def read_udfs(self, *args: Any) -> Any:
        if len(sys.modules) != self._modules:
            # Modules were imported since the last call. Freeze their objects, so that the garbage
            # collector does not visit them after each task.
            self._modules = len(sys.modules)
            gc.freeze()
        eval_type = args[2]
        task: _Task
        if eval_type in (self._plain_type, self._arrow_type):
            task = _Task(eval_type == self._arrow_type, self._fail_on_stopiteration)
        elif eval_type in self._batch_types and _int_from_env(BATCHES) > 1:
            task = _BatchTask(self._fail_on_stopiteration)
        else:
            return self._read_udfs(*args)
        self._task = task
        try:
            func, *rest = self._read_udfs(*args)
        finally:
            self._task = None
        return task.overlap_calls(func), *rest

    def read_single_udf(self, *args: Any, **kwargs: Any) -> Any:
        made = self._read_single_udf(*args, **kwargs)
        return made if self._task is None else self._task.adopt(made, runner_conf=args[3])

    def read_command(self, *args: Any) -> Any:
        command = self._read_command(*args)
        if self._task is None:
            return command
        self._task.functions.append(label_of(command[0]))
        suspends = is_coroutine_function(command[0])
        return (Step(command[0]), *command[1:]) if suspends else command

    def chain(self, f: Function, g: Function) -> Function:
        if _suspends((*_parts(f), *_parts(g))):
            f, g = (fn if _suspends(_parts(fn)) else Step(fn) for fn in (f, g))
        chained: Function = self._chain(f, g)
        return chained

    def handle_worker_exception(self, e: BaseException, *args: Any, **kwargs: Any) -> None:
        e.__traceback__ = _without_own_frames(e.__traceback__)
        self._report_error(e, *args, **kwargs)

    def try_simplify_traceback(self, tb: TracebackType) -> Any:
        return self._report_error(_without_own_frames(tb))


class _Task:
    """The UDFs of one task, and the threads and event loops that make their calls."""

    def __init__(self, arrow: bool, fail_on_stopiteration: Callable[[Function], Function]) -> None:
        self._is_arrow = arrow
        self._fail_on_stopiteration = fail_on_stopiteration
        self._concurrency = _int_from_env(CONCURRENCY)
        self._metrics = TaskMetrics(os.environ[METRICS]) if os.environ.get(METRICS) else None
        self.functions: list[str] = []
        self._first_unnamed = 0
        """How many of the first elements of ``functions`` have been put into ``_names``."""
        self._adopted = False
        self._overlaps = False
        self._profiled = False
        self._names: list[str] = []
        """A text for each UDF: the names of the functions that Spark has chained to this UDF."""
        names = os.environ.get(ONE_AT_A_TIME, "").split(",")
        self._one_at_a_time = {name.strip() for name in names} - {""}
        self._main_thread_ids: set[int] = set()
        """``id(fn)`` of sync functions whose calls must not overlap: the main thread makes them."""
        self._serial_async_ids: set[int] = set()
        """``id(fn)`` of async functions whose calls must not overlap: made one by one on a loop."""
        self._rows_to_compare = _int_from_env(COMPARE)
        self._one_by_one = False
        self._records = threading.local()
        self._windows: dict[str, CallSubmitter] = {}
        self._admission = Admission(
            0 if arrow else _int_from_env(RESULT_BYTES, DEFAULT_RESULT_BYTES),
            None if self._metrics is None else self._metrics.count_wait,
        )

    def adopt(self, made: Any, runner_conf: Any) -> Any:
        """Return ``made``, a UDF that Spark has read. It is changed to submit its calls if these
        may overlap.
        """
        if self._is_arrow:
            level = int(runner_conf.get(SPARK_CONCURRENCY_CONF, -1))
            self._concurrency = level if level > 0 else self._concurrency
        parts = [part for one in made if callable(one) for part in _parts(one)]
        profiled = any(map(_is_profiler, parts))
        self._profiled = self._profiled or profiled
        serial, suspends = self._last_read_is_serial(), _suspends(parts)
        if not suspends and (self._concurrency <= 0 or profiled or (serial and not self._is_arrow)):
            return made
        self._adopted = True
        if serial:
            (self._serial_async_ids if suspends else self._main_thread_ids).update(map(id, parts))
        if self._is_arrow:
            for cell in _cells(made, (PER_UDF,)):
                cell.cell_contents = self._evaluate_per_udf(cell.cell_contents)
                self._overlaps = True
            return made
        self._overlaps = True
        offsets, fn = made
        submit = self._window_for(fn, serial).submit
        if self._rows_to_compare > 0:
            return offsets, self._submit_or_call(fn, submit)
        return offsets, lambda *args: submit(fn, args)

    def _last_read_is_serial(self) -> bool:
        """Return whether ``ONE_AT_A_TIME`` names a function of the UDF that Spark has read last."""
        functions, self._first_unnamed = self.functions[self._first_unnamed :], len(self.functions)
        self._names.append(", ".join(functions))
        names = {name for label in functions for name in (label, label.rsplit(".", 1)[-1])}
        return not names.isdisjoint(self._one_at_a_time)

    def _submit_or_call(self, fn: Function, submit: Callable[[Function, Any], Any]) -> Function:
        suspends = _suspends(_parts(fn))

        def call(*args: Any) -> Any:
            if self._one_by_one:
                return submit(fn, args).outcome() if suspends else fn(*args)
            return submit(fn, args)

        return call

    def overlap_calls(self, func: Function) -> Function:
        """Wrap ``func``, which maps a partition's input to output, so that UDF calls overlap."""
        if self._adopted and self._is_arrow:
            for cell in _cells((func,), PER_BATCH):
                cell.cell_contents = self._evaluate_batch
                self._overlaps = True
        if not self._overlaps:
            return func
        make_shared_variables_thread_safe()
        run = self._run_batches if self._is_arrow else self._run_rows
        metrics = self._metrics

        def overlapped(split_index: int, data: Iterator[Any]) -> Iterator[Any]:
            if metrics is not None:
                metrics.begin(self.functions, self._calls_at_once, self._max_pending)
                data = metrics.count_inputs(data, _rows_of if self._is_arrow else lambda _: 1)
            state = "failed"
            try:
                results = run(func, split_index, data)
                yield from results if metrics is None else metrics.count_outputs(results)
                state = "done"
            except GeneratorExit:
                state = "stopped"
                raise
            finally:
                self._admission.stop()
                for window in self._windows.values():
                    window.close()
                for window in self._windows.values():
                    # Do not wait for threads after a failure or a stop: Spark ends this process.
                    if state == "done" or isinstance(window, LoopCalls):
                        window.join()
                if metrics is not None:
                    metrics.end(state)

        return overlapped

    def _run_rows(self, func: Function, split_index: int, data: Iterator[Any]) -> Iterator[Any]:
        if self._rows_to_compare <= 0:
            return rows_in_order(func(split_index, data), self._max_pending, self._admission)
        first = list(itertools.islice(data, self._rows_to_compare))
        with self._calling_one_by_one():
            one_by_one = list(func(split_index, iter(copy.deepcopy(first))))
        data = itertools.chain(first, data)
        rows = rows_in_order(func(split_index, data), self._max_pending, self._admission)
        return compared_rows(self._names, one_by_one, rows, self._calls_at_once)

    @contextlib.contextmanager
    def _calling_one_by_one(self) -> Iterator[None]:
        self._one_by_one = True
        try:
            yield
        finally:
            self._one_by_one = False

    def _run_batches(self, func: Function, split_index: int, data: Iterator[Any]) -> Iterator[Any]:
        if self._main_thread_ids:
            results: Iterator[Any] = func(split_index, data)
            return results

        one_by_one: list[Any] = []
        first = None
        if self._rows_to_compare > 0 and (first := next(data, None)) is not None:
            one_by_one = self._first_rows_one_by_one(func, split_index, first)
            data = itertools.chain((first,), data)

        def run(batch: Any) -> list[Any]:
            if one_by_one and batch is first:
                return self._compared_batch(
                    lambda: list(func(split_index, iter((batch,)))), one_by_one
                )
            return list(func(split_index, iter((batch,))))

        def calls() -> Iterator[tuple[Any, int]]:
            for batch in data:
                rows = _rows_of(batch)
                if "batch" not in self._windows:
                    self._windows["batch"] = self._batch_threads(rows)
                yield self._windows["batch"].submit(run, (batch,)), self._weight(rows)

        return batches_in_order(calls(), self._max_pending, self._admission)

    def _first_rows_one_by_one(self, func: Function, split_index: int, batch: Any) -> list[Any]:
        """Call the UDFs one by one for the first rows of ``batch``. Return a list for each UDF."""
        rows = min(self._rows_to_compare, _rows_of(batch))
        head = batch.slice(0, rows) if hasattr(batch, "slice") else [some[:rows] for some in batch]
        found: list[Any] = []
        self._records.results = found
        with self._calling_one_by_one():
            list(func(split_index, iter((head,))))
        self._records.results = None
        return found

    def _compared_batch(self, run: Callable[[], list[Any]], one_by_one: list[Any]) -> list[Any]:
        self._records.results = overlapped = list[Any]()
        try:
            results = run()
        except Exception as failed:
            report_failure(self._names, failed, self._calls_at_once)
            raise
        finally:
            self._records.results = None
        for name, serial, parallel in zip(self._names, one_by_one, overlapped, strict=True):
            report_difference(name, serial, parallel[: len(serial)], self._calls_at_once)
        return results

    def _batch_threads(self, rows: int) -> ThreadCalls:
        size = min(2 + self._max_pending // max(1, rows), MOST_BATCH_THREADS)
        return ThreadCalls(size, "batch", self._admission)

    def _weight(self, rows: int) -> int:
        return rows

    @property
    def _calls_at_once(self) -> int:
        return self._concurrency if self._concurrency > 0 else DEFAULT_CONCURRENCY

    @property
    def _max_pending(self) -> int:
        calls = self._calls_at_once
        return max(2, calls, min(PENDING_PER_CALL * calls, MAX_DEFAULT_PENDING))

    def _window_for(self, fn: Function, serial: bool = False) -> CallSubmitter:
        name = "loop" if _suspends(_parts(fn)) else "call"
        step = self._only_step(fn)
        if step is not None:
            step.returns_awaitable = True
        if serial:
            name = "serial"
        if name not in self._windows:
            at_once = 1 if serial else self._calls_at_once
            self._windows[name] = (
                LoopCalls(at_once, self._max_pending, self._admission, self._metrics)
                if name != "call"
                else ThreadCalls(
                    1 if self._profiled else max(1, self._concurrency),
                    name,
                    self._admission,
                    self._metrics,
                )
            )
        return self._windows[name]

    def _only_step(self, fn: Any) -> Step | None:
        """Return the ``Step`` (the wrapper of an async function) whose result ``fn`` returns as is;
        ``None`` if ``fn`` does anything else.
        """
        known = [made(len).__code__.co_code for made in (_forwarding, self._fail_on_stopiteration)]
        while not isinstance(fn, Step):
            cells = _named_cells(fn)
            if len(cells) != 1 or fn.__code__.co_code not in known:
                return None
            fn = cells[0][1].cell_contents
        return fn

    def _evaluate_batch(self, fn: Function, rows: Iterable[tuple[Any, ...]]) -> list[Any]:
        results = self._results_of(fn, rows)
        if (records := getattr(self._records, "results", None)) is not None:
            records.append(results)
        return results

    def _results_of(self, fn: Function, rows: Iterable[tuple[Any, ...]]) -> list[Any]:
        parts = {id(part) for part in _parts(fn)}
        submit = self._window_for(fn, not self._serial_async_ids.isdisjoint(parts)).submit
        on_main = self._one_by_one or not self._main_thread_ids.isdisjoint(parts)
        suspends = _suspends(_parts(fn))
        fn = self._fail_on_stopiteration(fn)
        if on_main:
            return [submit(fn, row).outcome() if suspends else fn(*row) for row in rows]
        calls = [submit(fn, row) for row in rows]
        results: list[Any] = []
        for start in range(0, len(calls), ROWS_PER_WAKE_UP):
            some = calls[start : start + ROWS_PER_WAKE_UP]
            self._admission.wait(some[-1])
            try:
                results += [call.outcome() for call in some]
            except Abandoned:
                break
        else:
            return results
        raise self._admission.failure_among(calls)

    def _evaluate_per_udf(self, stock: Function) -> Function:
        # In PySpark 3.5 to 4.1 each UDF has its own function ``evaluate``, which calls the UDF for
        # the rows of a batch. ``stock`` wraps ``evaluate``, to turn a StopIteration into another
        # error. The closure variables of ``evaluate`` contain the UDF.
        (inner,) = (cell.cell_contents for _, cell in _named_cells(stock))
        named = {name: cell.cell_contents for name, cell in _named_cells(inner)}
        fn = named["func"] if "func" in named else named["f"]
        get_args, result_of = named.get("get_args", zip), named.get("result_func")

        def evaluate(*columns: Any) -> Any:
            results = self._evaluate_batch(fn, get_args(*columns))
            if result_of is not None:
                results = [result_of(result) for result in results]
            return named["pd"].Series(results) if "pd" in named else results

        return evaluate


class _BatchTask(_Task):
    """The UDFs of a task that are called once per batch. Several batches run at the same time."""

    def __init__(self, fail_on_stopiteration: Callable[[Function], Function]) -> None:
        super().__init__(True, fail_on_stopiteration)
        self._concurrency = _int_from_env(BATCHES)
        # The task does not record the results of these UDFs. Calls one by one would be in vain.
        self._rows_to_compare = 0

    def adopt(self, made: Any, runner_conf: Any) -> Any:
        """Return ``made``, a UDF that Spark has read. Record whether calls of it may overlap."""
        del runner_conf
        parts = [part for one in made if callable(one) for part in _parts(one)]
        self._profiled = self._profiled or any(map(_is_profiler, parts))
        self._profiled = self._last_read_is_serial() or self._profiled
        self._overlaps = not self._profiled
        return made

    def _batch_threads(self, rows: int) -> ThreadCalls:
        del rows
        return ThreadCalls(self._concurrency, "batch", self._admission, self._metrics)

    def _weight(self, rows: int) -> int:
        del rows
        return 1

    @property
    def _max_pending(self) -> int:
        return self._concurrency


def _rows_of(batch: Any) -> int:
    # Before PySpark 4.2 a batch is a list of columns, and has no ``num_rows``.
    return batch.num_rows if hasattr(batch, "num_rows") else len(batch[0])


def _int_from_env(variable: str, default: int = 0) -> int:
    """Return the number in an environment variable; ``default`` if it is not set or no number."""
    text = os.environ.get(variable, str(default))
    try:
        return int(text)
    except ValueError:
        print(f"rstreams_fast: {variable}={text!r} is no number", file=sys.stderr)
        return default


def _named_cells(fn: Any) -> list[tuple[str, CellType]]:
    """Return names and cells of the closure variables of ``fn``; none if ``fn`` is not Spark's."""
    if getattr(fn, "__globals__", {}).get("__name__") not in STOCK_MODULES:
        return []
    return list(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))


def _cells(functions: Iterable[Any], names: tuple[str, ...]) -> list[CellType]:
    return [cell for fn in functions for name, cell in _named_cells(fn) if name in names]


def _parts(fn: Function) -> Iterator[Function]:
    """Yield ``fn`` and, if ``fn`` is a wrapper of Spark, all functions that are wrapped in it."""
    yield fn
    for _, cell in _named_cells(fn):
        if callable(cell.cell_contents):
            yield from _parts(cell.cell_contents)


def _forwarding(fn: Function) -> Function:
    return lambda *a: fn(*a)  # noqa: PLW0108 - as the stock worker writes it


def _suspends(parts: Iterable[Function]) -> bool:
    return any(isinstance(part, Step) for part in parts)


def _is_profiler(part: Any) -> bool:
    """Return whether ``part`` belongs to a profiler, which cannot measure overlapping calls."""
    code = getattr(part, "__code__", None)
    return code is not None and (
        code.co_name == "profiling_func"
        or (
            part.__module__ == "pyspark.sql.udf"
            and not {"profiler", "memory_profiler"}.isdisjoint(code.co_freevars)
        )
    )


def _without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback without frames of the daemon's modules, as Spark alone would make it."""
    frames = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(DAEMON_FOLDER):
            frames.append(traceback)
        traceback = traceback.tb_next
    for frame, following in zip(frames, [*frames[1:], None], strict=True):
        frame.tb_next = following
    return frames[0] if frames else None
