"""``Job``: one execution of ``rstreams-fast run``, from its input to its complete output."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast.calls.budget import Budget
from rstreams_fast.calls.functions import label_of
from rstreams_fast.calls.journal.journal import Journal
from rstreams_fast.calls.journal.uris import SCHEME, shown_uri
from rstreams_fast.calls.limits.limit import Limit
from rstreams_fast.calls.memory.cache import Cache
from rstreams_fast.calls.retry import Retry
from rstreams_fast.calls.settings import DEFAULT_CONCURRENCY
from rstreams_fast.spark.failures import split_failures
from rstreams_fast.spark.lookups import Enrich, enrich
from rstreams_fast.spark.metrics import Metrics
from rstreams_fast.spark.options import Failures
from rstreams_fast.spark.shell import files, functions
from rstreams_fast.spark.shell.errors import (
    CommandError,
    JobError,
    command_message,
    exception_line,
    spark_message,
    worker_exception,
)
from rstreams_fast.spark.shell.estimate import Estimate, estimate_lines
from rstreams_fast.spark.shell.sessions import (
    can_checkpoint,
    check_installed,
    runs_locally,
    session,
    slots_of,
)
from rstreams_fast.spark.worker.outcomes import OUTCOME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from rstreams_fast.spark.report import Watch

__all__ = ["Job"]

FAILURE: Final = "failure"
"""The column of the dead letters that has the error. It is not named ``outcome``: a command that
reads the dead letters as its input adds a column ``outcome``."""

_PATHS: Final = {
    word: f"--{word.replace('_', '-')}"
    for word in ("output", "dead_letters", "journal", "metrics", "page", "picture", "log")
}
"""The arguments whose paths the command writes to, with the names of their options."""

_NEEDED: Final = ("input", "call", "on", "add")


class Job:
    """One execution of the command. Errors before the first call raise ``CommandError``."""

    def __init__(self, options: argparse.Namespace, scratch: Path, log: Path) -> None:
        self._options = options
        self._log = log
        self._targets: list[files.Target] = []
        self.failed: int | None = None
        """The number of dead letters; ``None`` until the output is complete."""
        self._draws = bool(options.page or options.picture) and not options.explain
        self._reports = not options.explain and (self._draws or options.live or not options.quiet)
        self._watch: Watch | None = None
        needed = _NEEDED if options.explain else (*_NEEDED, "output")
        if missing := [f"--{name}" for name in needed if not getattr(options, name)]:
            raise CommandError(f"not given: {', '.join(missing)}")
        if options.max_failures is not None and not options.dead_letters:
            raise CommandError("--max-failures needs --dead-letters")
        if options.journal_version is not None and not options.journal:
            raise CommandError("--journal-version needs --journal")
        for file in (options.py_files or "").split(","):
            if file and not Path(file).is_file():
                raise CommandError(f"--py-files {file}: there is no such file")
        for name in ("page", "picture", "log"):
            path = getattr(options, name)
            if path and not Path(path).absolute().parent.is_dir():
                raise CommandError(f"--{name} {path}: there is no such directory")
            if path and Path(path).is_dir():
                raise CommandError(f"--{name} {path}: is a directory")
        if options.picture and not options.picture.lower().endswith((".png", ".svg", ".pdf")):
            raise CommandError(f"--picture {options.picture}: must end with .png, .svg or .pdf")
        packages = ["pyspark", "pyarrow", *["rich"] * self._reports]
        packages += ["matplotlib"] * bool(options.picture)
        check_installed(packages, options.master, options.remote)
        if options.dead_letters and not can_checkpoint(options.master, options.remote):
            raise CommandError("--dead-letters: on Spark Connect this needs PySpark 4.0 or later")
        self._is_local = runs_locally(options.master, options.remote)
        self._on = [name.strip() for name in options.on.split(",")]
        self._input_kind = files.kind_of(options.input, "--input", options.format)
        self._fn, self._kept_words = self._load_function()
        # Use a new directory inside ``options.metrics``: an earlier command may have left its
        # metrics there.
        shared = Path(options.metrics or scratch) / f"metrics-{uuid.uuid4().hex}"
        self._metrics_path = shared if options.metrics or self._is_local else None
        self._metrics: Metrics | None = None
        if options.live and options.quiet:
            raise CommandError("--live prints the address of the page, which --quiet forbids")
        if self._metrics_path is None and (self._draws or options.live):
            raise CommandError(
                "--live, --page and --picture need --metrics: a directory that all hosts share"
            )
        if self._is_local and not SCHEME.match(options.input):
            files.reader_path(options.input)
        if not options.explain:
            self._output_kind = files.kind_of(
                options.output, "--output", options.format or self._input_kind
            )
            self._targets = [self._target("output")]
            if options.dead_letters:
                self._targets.append(self._target("dead_letters"))
            paths = {option: getattr(options, word) for word, option in _PATHS.items()}
            files.check_apart(
                {option: path for option, path in paths.items() if path},
                [target.option for target in self._targets],
            )

    def _target(self, word: str) -> files.Target:
        path, option = getattr(self._options, word), _PATHS[word]
        overwrite = self._options.overwrite
        return files.target_of(path, option, here=self._is_local, overwrite=overwrite)

    def close(self) -> None:
        """Remove incomplete output, and the files of the metrics."""
        for target in self._targets:
            target.close()
        if self._metrics is not None:
            self._metrics.cleanup()

    def _load_function(self) -> tuple[Callable[..., Any], list[str]]:
        options = self._options
        fn = functions.load_callable("--call", options.call)
        self._using = functions.load_callable("--using", options.using) if options.using else None
        lists = options.batch is not None
        functions.check_arguments(fn, len(self._on), using=self._using is not None, lists=lists)
        with _as_command_errors():
            words: dict[str, Any] = {}
            if options.limit is not None or options.rate is not None:
                words["limit"] = Limit(
                    options.call, concurrency=options.limit, rate=options.rate, scope="job"
                )
            if options.budget is not None:
                words["budget"] = Budget(options.call, calls=options.budget)
            if options.timeout is not None:
                words["timeout"] = options.timeout
            # ``--retries 0`` and ``--cache 0`` add no retries and no cache. They do not remove the
            # retries and the cache of the function's own policy.
            if options.retries is not None:
                words["retry"] = Retry(options.retries) if options.retries else None
            words["cache"] = Cache(options.cache) if options.cache else None
            if options.journal:
                uri = options.journal
                if self._is_local and not SCHEME.match(uri):
                    uri = str(Path(uri).absolute())
                words["journal"] = Journal(uri, version=options.journal_version or options.call)
            return functions.with_policy(fn, words)

    def _stage(self) -> Enrich:
        options, policy = self._options, functions.policy_of(self._fn)
        on_failure: str | Failures = "raise"
        if options.dead_letters:
            on_failure = Failures("column", at_most=options.max_failures)
        return enrich(
            self._fn,
            on=self._on,
            output=options.add,
            using=self._using,
            concurrency=self._concurrency,
            batch=options.batch,
            dedupe=policy.cache is not None,
            on_failure=on_failure,
            metrics=self._metrics,
        )

    @property
    def _concurrency(self) -> int:
        limit = functions.policy_of(self._fn).limit
        return DEFAULT_CONCURRENCY if limit is None else limit.concurrency or DEFAULT_CONCURRENCY

    @property
    def journal(self) -> str | None:
        """The URI of the journal in the function's own policy, else of ``--journal``, if any.

        A journal stores the results of calls, so that a repeated command need not make them again.
        """
        journal = functions.policy_of(self._fn).journal
        if journal is None:
            return None
        given: str | None = self._options.journal
        return journal.uri if given is None or "journal" in self._kept_words else given

    def run(self) -> int:
        """Run the whole job; return the number of dead letters."""
        options = self._options
        for target in self._targets:
            target.claim()
        with _as_command_errors():
            self._metrics = self._new_metrics()
        self._print_kept_policy()
        self._print("Starting Spark")
        conf = {**files.settings_of(self._input_kind), **dict(options.conf)}
        with session(options.master, options.remote, conf, self._log) as spark:
            with _as_command_errors():
                for target in self._targets:
                    target.check(spark)
                frame = self._read(spark)
                stage = self._stage()
                enriched = frame.transform(stage)
            with _as_job_errors():
                if options.explain:
                    self._explain(frame, stage, slots_of(spark))
                    return 0
                failed = self._write(frame, enriched)
            with _ignoring_signals():
                for target in reversed(self._targets):
                    target.publish()
                self.failed = failed
        if self._draws and self._watch is not None:
            self._draw(self._watch)
        self._print_result(failed)
        return failed

    def _new_metrics(self) -> Metrics | None:
        if self._metrics_path is None:
            return None
        metrics = Metrics(self._metrics_path)
        # The workers may be other users than this process: give them the same access as to
        # ``--metrics``.
        if self._options.metrics:
            Path(metrics.path).chmod(Path(self._options.metrics).stat().st_mode & 0o7777)
        return metrics

    def _read(self, spark: SparkSession) -> DataFrame:
        options = self._options
        if not self._is_local:
            functions.send_by_value([fn for fn in (self._fn, self._using) if fn is not None])
        if options.py_files:
            functions.send_files(spark, options.py_files.split(","))
        return files.read(
            spark,
            options.input,
            self._input_kind,
            here=self._is_local,
            types=options.types,
            options=dict(options.read),
        )

    def _write(self, frame: DataFrame, enriched: DataFrame) -> int:
        """Write the output and the dead letters; return the number of dead letters."""
        options, output = self._options, self._targets[0]
        with self._with_progress(frame):
            if not options.dead_letters:
                output.write(enriched, self._output_kind, dict(options.write))
                return 0
            # Do not use persist(): Spark would repeat the calls of a lost executor. If the repeated
            # call of a row succeeded after the first had failed, or the reverse, both outputs, or
            # neither, would have the row.
            good, bad = split_failures(enriched.localCheckpoint())
        kept = [_column(name) for name in frame.columns if name.lower() != FAILURE]
        bad = bad.select(*kept, _column(OUTCOME).alias(FAILURE))
        self._targets[1].write(bad, "parquet", {})
        output.write(good, self._output_kind, dict(options.write))
        return bad.count()

    @contextlib.contextmanager
    def _with_progress(self, frame: DataFrame) -> Iterator[None]:
        """Show a progress bar while the block runs, and tables of the metrics at its end."""
        if self._metrics is None or not self._reports:
            yield
            return
        from rstreams_fast.spark import report

        console = report.make_console(quiet=self._options.quiet)
        with console.status("Counting the rows"):
            rows = frame.count()
        with report.watch(
            self._metrics,
            rows=rows,
            console=console,
            page=self._options.live,
            title=self._title,
        ) as self._watch:
            yield

    @property
    def visible(self) -> list[str]:
        """The options and paths of the outputs that have appeared."""
        return [f"{each.option} {each.path}" for each in self._targets if each.is_visible]

    @property
    def _title(self) -> str:
        return f"{label_of(self._fn)} for {shown_uri(self._options.input)}"

    def _draw(self, watch: Watch) -> None:
        from rstreams_fast.spark import report

        options = self._options
        try:
            if options.page:
                report.write_page(options.page, watch, title=self._title)
            if options.picture:
                report.draw(watch.samples, options.picture, title=self._title)
        except (OSError, ValueError) as refused:  # only a warning: the output is complete
            print(f"rstreams-fast run: {refused}", file=sys.stderr)

    # -- messages ----------------------------------------------------------------------------------

    def _print(self, text: str) -> None:
        if not self._options.quiet or self._options.explain:
            try:
                print(text, flush=True)
            except BrokenPipeError:
                if self._options.explain:
                    raise
                # Nobody reads the messages any more (``| head``). But the output of the run is in
                # files: go on, and print nothing more.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _print_kept_policy(self) -> None:
        own = functions.policy_of(self._fn)
        for word in self._kept_words:
            value = getattr(own, word)
            self._print(
                f"--call {self._options.call} has a Policy with {word}={value!r}, which holds"
            )
        if own.journal is not None and _has_entries(own.journal.uri):
            self._print(f"Going on from the journal {self.journal}")

    def _print_result(self, failed: int) -> None:
        options = self._options
        if self._metrics is not None and (hits := self._metrics.totals().journal_hits):
            self._print(f"{hits:,} rows had their answer in the journal, and made no call")
        if failed:
            self._print(f"{failed:,} rows whose call failed: {options.dead_letters}")
        self._print(f"Output: {options.output}")

    def _explain(self, frame: DataFrame, stage: Enrich, slots: int | None) -> None:
        policy, batch = functions.policy_of(self._fn), self._options.batch
        sampled = policy.limit is not None and bool(policy.limit.units)
        estimate = Estimate.of(frame, self._on, slots, sampled=sampled)
        try:
            lines = estimate_lines(estimate, policy, concurrency=self._concurrency, batch=batch)
        except Exception as raised:  # the user's ``weigh`` may raise any error
            raise CommandError(
                f"--call {self._options.call}: its limit's weigh raised {exception_line(raised)}"
            ) from None
        self._print(f"{label_of(self._fn)} for {self._options.input}, by {', '.join(self._on)}:")
        self._print("\n".join([*lines, stage.describe(), "Nothing was called or written."]))


def _column(name: str) -> Any:
    from pyspark.sql.functions import col

    return col(f"`{name.replace('`', '``')}`")


def _has_entries(uri: str) -> bool:
    """Whether a journal at a local path has stored results; ``False`` if ``uri`` is no path."""
    return not SCHEME.match(uri) and Path(uri).is_dir() and any(Path(uri).iterdir())


@contextlib.contextmanager
def _ignoring_signals() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM within the block, so that they do not stop ``publish`` half-way."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: None) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def _as_command_errors() -> Iterator[None]:
    """Convert errors before the first call to a ``CommandError`` for the user."""
    kinds: tuple[type[Exception], ...]
    kinds = (*_spark_errors(), OSError, ValueError, TypeError, RuntimeError)
    try:
        yield
    except kinds as refused:
        raise CommandError(command_message(refused)) from None


@contextlib.contextmanager
def _as_job_errors() -> Iterator[None]:
    """Convert errors of Spark to a ``JobError``, with the user's own exception if there is one."""
    from pyspark.errors import AnalysisException

    try:
        yield
    except AnalysisException as refused:
        # Spark raises AnalysisException before any call, for example for a type that CSV cannot
        # store.
        raise CommandError(command_message(refused)) from None
    except _spark_errors() as failed:
        text = str(failed)
        raise JobError(worker_exception(text) or spark_message(text)) from None


def _spark_errors() -> tuple[type[Exception], ...]:
    from pyspark.errors import PySparkException

    # A client of Spark Connect may have no py4j.
    with contextlib.suppress(ModuleNotFoundError):
        from py4j.protocol import Py4JError

        return PySparkException, Py4JError
    return (PySparkException,)
