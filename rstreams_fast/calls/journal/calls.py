"""``JournalledCalls``: the calls of a stage's function whose answers a journal keeps.

A stage is a step of a Spark job that calls a user's function, such as ``rs.lookup``. An answer goes
to a log file (a write-ahead log) first, and later to a segment file (an Arrow file of answers).
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from typing import Any, Final

from rstreams_fast.calls.counts import CallCounts
from rstreams_fast.calls.errors import StageError
from rstreams_fast.calls.journal.answers import Answers, answers_of
from rstreams_fast.calls.journal.forms import AnswerForm
from rstreams_fast.calls.journal.journal import Journal
from rstreams_fast.calls.journal.segments import enforce_max_bytes, latest_time
from rstreams_fast.calls.journal.writer import JournalWriter
from rstreams_fast.calls.keys import KeyDigest, own_copy
from rstreams_fast.calls.outcome import Outcome
from rstreams_fast.calls.settings import CallSettings
from rstreams_fast.core import MISSING

__all__ = [
    "WAIT_SECONDS",
    "Call",
    "JournalledCalls",
    "digest_of_text",
    "find_answers",
    "folder_name_of",
    "tidy_up",
]

MANY_SEGMENTS: Final = 512
"""If a folder has this number of segment files or more, a stage that ends may merge them."""

COMPACT_PROBABILITY: Final = 1 / 8
"""The probability with which an ending stage merges ``MANY_SEGMENTS`` or more segment files."""

WAIT_SECONDS: Final = 0.01
"""Interval, in seconds, at which a waiting call checks whether enough answers are written."""

LOGGED_SHARE: Final = 16
"""The most answers of a log record: the number of calls in flight, divided by this number."""

Call = Callable[..., Awaitable[Any]]


class JournalledCalls:
    """Looks up each call of a function in a journal before the call is made; stores new answers."""

    def __init__(
        self,
        settings: CallSettings,
        journal: Journal,
        form: AnswerForm,
        counts: CallCounts,
        key_of: Callable[..., tuple[Any, ...]] | None = None,
        *,
        may_change: bool = True,
    ) -> None:
        """``key_of`` makes the key of a call from its arguments. Default: the arguments are the
        key. ``may_change``: whether the function could change its arguments.
        """
        self._journal = journal
        self._digest_of = KeyDigest(settings.label, journal.version)
        folder_name = folder_name_of(settings.label, journal.version, form.text)
        self._answers = answers_of(journal.uri, folder_name, form)
        self._key_of = key_of
        self._may_change = may_change or key_of is not None
        self._as_outcomes = settings.as_outcomes
        in_flight = settings.concurrency * (1 if settings.batch is None else settings.batch.rows)
        self._log_size = max(1, in_flight // LOGGED_SHARE)
        self._counts = counts
        self._writer = JournalWriter(
            self._answers.folder,
            self._answers.levels,
            digest_of_text(journal.uri, folder_name),
            form,
        )
        self._unlogged_keys: list[Any] = []
        """The keys of the answers that are not logged yet."""
        self._keys_are_values = False
        """Whether each of ``_unlogged_keys`` is one value; otherwise each is a tuple of values."""
        self._unlogged_answers: list[Any] = []
        """The answers of the calls with ``_unlogged_keys``, in the same order."""

    def open(self) -> None:
        """Find all answers written so far, and start the thread that writes new answers."""
        find_answers(self._writer, self._answers, self._journal)
        self._writer.start()

    def close(self, tidy: bool) -> None:
        """Write all answers. With ``tidy``, also merge segment files, and enforce ``max_bytes``.

        With ``tidy``, but without ``max_bytes``, the caller does not wait until the files are
        merged: else a stream would wait for this even after a single row.
        """
        self._log()
        if not tidy:
            self._writer.close()
            self._answers.close()
            return
        finish = partial(tidy_up, self._writer, self._answers, self._journal)
        if self._journal.max_bytes is None:
            self._writer.close(finish)
        else:
            self._writer.close()
            finish()

    def wrap(self, fn: Call, loop: asyncio.AbstractEventLoop) -> Call:
        """Return a wrapper that calls ``fn`` only for keys without an answer in the journal.

        ``fn`` gets a copy of arguments that it could change: the originals are the key.
        """
        answers, writer, counts = self._answers, self._writer, self._counts
        as_outcomes, key_of, store = self._as_outcomes, self._key_of, self._make_store(loop)

        async def call(*args: Any) -> Any:
            key = args if key_of is None else key_of(*args)
            if answers.has_any and (found := await self._find(key, loop)) is not MISSING:
                counts.journal_hits += 1
                return Outcome(found, None, 0, 0.0) if as_outcomes else found
            result = await fn(*own_copy(args))
            if not as_outcomes:
                store(key, result)
            elif result.error is None:
                store(key, result.value)
            else:
                return result
            if writer.is_slow:
                await self._wait()
            return result

        return call

    @property
    def needs_no_lookup(self) -> bool:
        """Whether no call needs a look-up, so that ``make_on_result`` may replace ``wrap``."""
        return not (self._answers.has_any or self._may_change or self._as_outcomes)

    def make_on_result(
        self, loop: asyncio.AbstractEventLoop, spread: bool
    ) -> Callable[[Any, Any], None]:
        """Return the ``on_result`` of a ``CallWindow``, which stores the answer to each item.

        This takes half of the time of ``wrap``, which adds a coroutine to each call. The caller
        checks ``is_behind`` before it submits items. ``spread``: whether items are tuples.
        """
        self._keys_are_values = not spread
        return self._make_store(loop)

    def _make_store(self, loop: asyncio.AbstractEventLoop) -> Callable[[Any, Any], None]:
        """Return a function that stores the answer for a key.

        Answers that come in the same iteration of the ``loop`` are logged together: a log record
        for each call would take most of the call's time.
        """
        keys, new_answers = self._unlogged_keys, self._unlogged_answers
        log_size, log = self._log_size, self._log
        context = copy_context()

        def store(key: Any, answer: Any) -> None:
            keys.append(key)
            new_answers.append(answer)
            if len(keys) >= log_size:
                log()
            elif len(keys) == 1:
                loop.call_soon(log, context=context)

        return store

    @property
    def is_behind(self) -> bool:
        """Whether new calls must wait until answers are written. Raises if the journal failed."""
        try:
            return self._writer.is_slow and self._writer.is_behind
        except Exception as raised:
            raise StageError(f"the journal cannot keep an answer: {raised}") from raised

    async def _find(self, key: tuple[Any, ...], loop: asyncio.AbstractEventLoop) -> Any:
        answers = self._answers
        try:
            digest = self._digest_of(key)
            if not answers.may_have(digest):
                return MISSING
            if answers.folder.is_local:
                return answers.get(digest)
            return await loop.run_in_executor(None, answers.get, digest)
        except Exception as raised:
            # The journal may have the answer already. So fail the stage: another call would be
            # paid for again.
            raise StageError(f"the journal cannot be asked for the answer: {raised}") from raised

    async def _wait(self) -> None:
        """Wait while too many answers are unwritten; raise if the journal has failed."""
        while self.is_behind:  # noqa: ASYNC110 - the writer knows no loop
            await asyncio.sleep(WAIT_SECONDS)

    def _log(self) -> None:
        """Write the answers since the last ``_log`` to the log. If this fails, ``_wait`` raises."""
        if not self._unlogged_keys:
            return
        keys, answers = self._unlogged_keys.copy(), self._unlogged_answers.copy()
        self._unlogged_keys.clear()
        self._unlogged_answers.clear()
        self._writer.put(self._digest_of, zip(keys) if self._keys_are_values else keys, answers)


def find_answers(writer: JournalWriter, answers: Answers, journal: Journal) -> None:
    """Find all answers written so far. Raise, before a paid call, if answers cannot be written."""
    folder = answers.folder
    folder.check_writable()
    # ``max_bytes`` removes the files with the oldest times, from all folders. So the time in the
    # name of a new file must be later than the times in the names of all present files.
    if journal.max_bytes is not None and not folder.latest_time:
        folder.latest_time = latest_time(journal.uri)
    # Read the logs before the segment files: an answer may move from a log to a file meanwhile.
    logged = writer.read_logs()
    # Answers that were in logs at the last call may be in segment files now. Keep these answers
    # until ``refresh`` has indexed the files.
    answers.logged = {**answers.logged, **logged}
    answers.refresh()
    answers.logged = logged


def tidy_up(writer: JournalWriter, answers: Answers, journal: Journal) -> None:
    """Index and merge new segment files, enforce ``max_bytes``, and close all segment files."""
    if writer.has_written:
        # Index now: then the next micro-batch in this process has nothing to index first.
        answers.refresh()
        # Many tasks find the same files: each task merges them only with a small probability.
        if answers.segments >= MANY_SEGMENTS and random.random() < COMPACT_PROBABILITY:  # noqa: S311
            answers.folder.compact()
        if journal.max_bytes is not None:
            enforce_max_bytes(journal.uri, journal.max_bytes)
    # Close the files: the process may keep the index for weeks without a look-up.
    answers.close()


def folder_name_of(label: str, version: str, form: str) -> str:
    """Return the name of the folder for the answers of a function in this version and ``form``."""
    return digest_of_text(label, version, form)


def digest_of_text(*parts: str) -> str:
    """Return a digest of ``parts``, as the name of a folder or of log files."""
    return hashlib.blake2b(ascii(parts).encode(), digest_size=16).hexdigest()
