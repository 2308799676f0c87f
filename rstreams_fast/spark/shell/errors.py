"""The errors that stop ``rstreams-fast run``, and its exit statuses."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = [
    "EXIT_DEAD_LETTERS",
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_OK",
    "EXIT_WRONG",
    "CommandError",
    "JobError",
    "command_message",
    "exception_line",
    "one_line_message",
    "spark_message",
    "worker_exception",
]

EXIT_OK: Final = 0
"""Every row is in the output."""
EXIT_FAILED: Final = 1
"""A call or Spark failed. There is no output."""
EXIT_WRONG: Final = 2
"""The command is wrong, or something is not installed. No call was made."""
EXIT_DEAD_LETTERS: Final = 3
"""The output is there, and some rows are dead letters."""
EXIT_INTERRUPTED: Final = 130
"""Ctrl-C stopped the command. Shells use this status, too."""


class CommandError(Exception):
    """A mistake of the user. The text of the exception is the whole message."""


class JobError(Exception):
    """A call or Spark failed. The text of the exception is the whole message."""


_OPTIONS: Final[Mapping[str, str]] = {
    "on": "--on",
    "output": "--add",
    "batch": "--batch",
    "timeout": "--timeout",
    "using": "--using",
    "fn": "--call",
    "path": "--metrics",
    "on_failure='column'": "--dead-letters",
    "Limit(concurrency)": "--limit",
    "Limit(rate)": "--rate",
    "Budget(calls)": "--budget",
    "Retry(times)": "--retries",
    "Cache(entries)": "--cache",
    "Journal(uri)": "--journal",
    "Journal(version)": "--journal-version",
    "Failures(at_most)": "--max-failures",
}
"""The arguments of ``enrich`` and of policies, with the command's options for them."""


def command_message(refused: Exception) -> str:
    """Return the message of an ``enrich`` error, with the command's options for its arguments."""
    text = one_line_message(str(refused))
    for word, option in _OPTIONS.items():
        text = re.sub(rf"^{re.escape(word)}(?=[:= ])", option, text)
    return text.replace("the frame", "the input")


def one_line_message(text: str) -> str:
    """Return a message of Spark on one line, without the query plan and the stack trace."""
    message, _, _ = text.strip().partition("\n\n")
    message, _, _ = message.partition("\n== ")
    message, _, _ = message.partition(";\n'")
    message, _, _ = message.partition("\nJVM stacktrace")
    return " ".join(line.strip() for line in message.splitlines() if not _FRAME(line))


_FRAME: Final = re.compile(r"\s+at [\w.$/@]+\(|\s*\.\.\. \d+ more").match

_CONDITION: Final = re.compile(r"\[[A-Z0-9_.]+\] (.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_CAUSE: Final = re.compile(r"^Caused by: (?:\w+\.)*", re.MULTILINE)


def spark_message(text: str) -> str:
    """Return the messages of a failed job and its causes in one line, without Java's frames.

    If a record cannot be read, the line also names options that may help.
    """
    messages: list[str] = []
    for each in _CAUSE.split(text):
        # Exceptions of Java itself have no condition in brackets, but may give the only reason.
        messages += map(str.strip, _CONDITION.findall(each) or [one_line_message(each)])
    message = " ".join(filter(None, dict.fromkeys(messages)))
    if "Malformed" in message:
        message += (
            " (--read multiLine=true reads values with line breaks, "
            "and --read mode=PERMISSIVE lines with other numbers of fields)"
        )
    return message


_TRACEBACK: Final = "Traceback (most recent call last):"
_GROUP: Final = f"+ Exception Group {_TRACEBACK}"
_FILE: Final = re.compile(r'  File "([^"]+)", line \d+, in ')
_MARGIN: Final = re.compile(r"\s*\| ?")
"""The beginning of each line of an exception group."""
_RULE: Final = re.compile(r"\s*\+-[-+]*( (\d+|\.\.\.) -+)?$")
"""A line between two exceptions of a group."""
_JAVA: Final = re.compile(r"\s*(SQLSTATE:|Driver stacktrace:|JVM stacktrace:)")
"""A line that follows the message of an exception, other than Java's frames."""


def worker_exception(text: str) -> str | None:
    """Return the exception of a Python worker, with only the lines of the user's code.

    ``None`` if no worker raised an exception.
    """
    lines = text.splitlines()
    begins = [i for i, line in enumerate(lines) if _TRACEBACK in line and not _MARGIN.match(line)]
    if not begins:
        return None
    header, lines = lines[begins[-1]], lines[begins[-1] + 1 :]
    if _GROUP not in header:
        return _user_lines(lines)
    parts: list[list[str]] = [[]]
    for line in lines:
        if _RULE.match(line):
            parts.append([])
        elif (margin := _MARGIN.match(line)) is None:
            break
        elif line.endswith(_TRACEBACK):
            parts[-1].clear()  # the causes of this exception
        else:
            parts[-1].append(line[margin.end() :])
    return "\n".join(filter(None, map(_user_lines, parts)))


def _user_lines(lines: Sequence[str]) -> str:
    """Return the message that follows the frames in ``lines``, then the frames of user's code."""
    frames: list[str] = []
    last: Sequence[str] = []
    is_own = False
    for place, line in enumerate(lines):
        if found := _FILE.match(line):
            is_own = _is_user_file(found[1])
        elif not line.startswith("  "):
            last = lines[place:]
            break
        if is_own:
            frames.append(line)
    ends = [i for i, line in enumerate(last) if _FRAME(line) or _JAVA.match(line)]
    message = "\n".join(last[: ends[0]] if ends else last).rstrip()
    return "\n".join([message, *frames])


_LIBRARIES: Final = (
    "rstreams_fast",
    "pyspark",
    "asyncio",
    "concurrent",
    "importlib",
    "uvloop",
    "<frozen ",
)


def _is_user_file(file: str) -> bool:
    path, here = Path(file), Path.cwd()
    if path.is_relative_to(here):  # the directory of a project may have the name of a library
        path = path.relative_to(here)
    return not any(part in _LIBRARIES for part in path.parts) and not file.startswith("<")


def exception_line(raised: BaseException) -> str:
    """Return an exception of the user's module in one line, with the place that raised it."""
    own = [f for f in traceback.extract_tb(raised.__traceback__) if _is_user_file(f.filename)]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    # Not ``format_exception_only``: an exception may have several lines, and notes after them.
    return one_line_message(f"{type(raised).__name__}: {raised}".removesuffix(": ")) + where
