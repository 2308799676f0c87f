"""The journal of a function outside stages: the first call opens it, and ``end`` closes it.

A stage is a step of a Spark job that calls a user's function, such as ``rs.lookup``.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from rstreams_fast.calls.counts import CallCounts
from rstreams_fast.calls.errors import with_note
from rstreams_fast.calls.journal.answers import Answers, answers_of
from rstreams_fast.calls.journal.calls import (
    WAIT_SECONDS,
    Call,
    digest_of_text,
    find_answers,
    folder_name_of,
    tidy_up,
)
from rstreams_fast.calls.journal.journal import Journal
from rstreams_fast.calls.journal.plain import answer_of, text_of_answer
from rstreams_fast.calls.journal.writer import JournalWriter
from rstreams_fast.calls.keys import KeyDigest
from rstreams_fast.core import MISSING
from rstreams_fast.runtime.at_exit import call_at_process_end
from rstreams_fast.runtime.fork_lock import ForkLock

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FunctionJournal"]

IDLE_SECONDS: Final = 1.0
"""After this many seconds without an answer, the thread that writes files of answers ends."""


class _TextForm:
    """Stores answers as text, for functions outside stages, which declare no type."""

    text = "plain values, 1"

    def __init__(self) -> None:
        import pyarrow as pa

        self.type = pa.string()

    def array(self, answers: list[Any]) -> pa.Array:
        """Return an Arrow array of ``answers``, which are texts."""
        import pyarrow as pa

        return pa.array(answers, self.type)

    def value(self, scalar: pa.Scalar) -> Any:
        """Return the answer from which ``array`` made ``scalar``."""
        return scalar.as_py()


class _OpenJournal:
    """The journal of one function and version in this process. All threads and loops share it.

    ``open``, ``close`` and ``remove_user`` may wait for disks and the network, so they must not run
    on the thread of an event loop. The other methods do not wait for them.
    """

    answers: Answers
    """The answers in the journal. The first ``open`` sets this attribute."""

    writer: JournalWriter
    """Writes new answers. The first ``open`` sets this attribute."""

    def __init__(self, journal: Journal, label: str) -> None:
        self._journal = journal
        self._label = label
        self.digest_of = KeyDigest(label, journal.version)
        self._lock = threading.Lock()
        """A thread that opens or closes the journal holds this lock, perhaps for seconds."""
        self._users = 0
        self._users_lock = threading.Lock()
        self._owners: WeakSet[object] = WeakSet()
        """The functions with a ``Policy`` that have opened the journal."""
        self._is_made = False
        """Whether ``answers`` and ``writer`` are set."""
        self.is_open = False

    def add_user(self) -> None:
        with self._users_lock:
            self._users += 1

    def remove_user(self) -> None:
        """Remove a user. If there is no user now, close the journal."""
        with self._users_lock:
            self._users -= 1
        with self._lock:
            # A user may have been added meanwhile. A user that is added later waits for the lock in
            # ``open``, and then opens the journal again.
            if not self._users:
                self._close()

    def open(self, owner: object) -> None:
        """Open the journal if it is closed. For a new ``owner``, find all answers written so far.

        Each Spark task has a new owner: a reused worker must find what other workers have written
        since its last task.
        """
        with self._lock:
            if self.is_open and owner in self._owners:
                return
            if not self._is_made:
                self._make()
            find_answers(self.writer, self.answers, self._journal)
            self._owners.add(owner)
            if self.is_open:
                return
            self.writer.start(IDLE_SECONDS)
            self.is_open = True

    def _make(self) -> None:
        form = _TextForm()
        # Make pyarrow import its modules now, because imports fail while Python exits.
        form.array([""])
        folder_name = folder_name_of(self._label, self._journal.version, form.text)
        self.answers = answers = answers_of(self._journal.uri, folder_name, form)
        logs = digest_of_text(self._journal.uri, folder_name)
        self.writer = JournalWriter(
            answers.folder, answers.levels, logs, form, self._forget_written
        )
        self._is_made = True

    def close(self) -> None:
        """Wait until every answer is written, then close the journal."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.writer.close()
            tidy_up(self.writer, self.answers, self._journal)

    def put(self, digest: bytes, answer: Any) -> None:
        """Store an answer. Raises ``TypeError`` if it is no plain value (see ``Journal``)."""
        text = text_of_answer(answer)
        self.answers.add(digest, text)
        self.writer.put_digests([digest], [text])

    def _forget_written(self, digests: list[bytes]) -> None:
        self.answers.refresh()
        self.answers.forget(digests)


_open_journals: Final[dict[tuple[int, str, str, str], _OpenJournal]] = {}
_open_journals_lock: Final = ForkLock()


def _open_journal_of(journal: Journal, label: str) -> _OpenJournal:
    # The key contains the process id, because a forked child must open its own files.
    key = os.getpid(), journal.uri, label, journal.version
    with _open_journals_lock:
        found = _open_journals.get(key)
        if found is None:
            found = _open_journals[key] = _OpenJournal(journal, label)
            call_at_process_end(found.close)
        return found


class FunctionJournal:
    """Looks up each call of a function with a ``Policy`` in a journal, and stores new answers.

    From the first call until ``end`` the process keeps files open. Without ``end``, the remaining
    answers are written when the process ends. If the process is killed, the next process finds the
    remaining answers in the log.
    """

    def __init__(
        self,
        journal: Journal,
        label: str,
        key_of: Callable[..., tuple[Any, ...]],
        counts: CallCounts,
        owner: object,
    ) -> None:
        """``key_of`` makes a key of the arguments. ``owner`` is the function with the policy."""
        self._owner = owner
        self._open = _open_journal_of(journal, label)
        self._label = label
        self._key_of = key_of
        self._counts = counts
        self._open.add_user()

    def end(self) -> None:
        """Wait until every answer is written, unless other threads or loops use the journal."""
        self._open.remove_user()

    def wrap(self, fn: Call, loop: asyncio.AbstractEventLoop | None) -> Call:
        """Return a wrapper that calls ``fn`` only for keys without an answer in the journal.

        Without a ``loop``, the wrapper blocks its thread instead of suspending.
        """
        journal, counts, key_of = self._open, self._counts, self._key_of
        owner, is_known = self._owner, False

        async def call(*args: Any) -> Any:
            nonlocal is_known
            key = key_of(*args)
            digest = journal.digest_of(key)
            if not (is_known and journal.is_open):
                if loop is None:
                    journal.open(owner)
                else:
                    await loop.run_in_executor(None, journal.open, owner)
                is_known = True
            answers, writer = journal.answers, journal.writer
            if answers.has_any and answers.may_have(digest):
                if loop is None or answers.folder.is_local:
                    found = answers.get(digest)
                else:
                    found = await loop.run_in_executor(None, answers.get, digest)
                if found is not MISSING:
                    counts.journal_hits += 1
                    return answer_of(found)
            # If the journal cannot be written, ``is_behind`` raises here, before a call is paid
            # for.
            while writer.is_slow and writer.is_behind:
                if loop is None:
                    time.sleep(WAIT_SECONDS)  # noqa: ASYNC251 - the call is to block
                else:
                    await asyncio.sleep(WAIT_SECONDS)
            result = await fn(*args)
            try:
                # Use the digest from before the call: ``fn`` may have changed its arguments since.
                journal.put(digest, result)
            except Exception as refused:
                raise with_note(refused, f"returned by {self._label}") from None
            return result

        return call
