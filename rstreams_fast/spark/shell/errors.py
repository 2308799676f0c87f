"""The errors that stop ``rstreams-fast run``, their messages, and the exit statuses."""

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
"""All rows are in the output."""
EXIT_FAILED: Final = 1
"""A call of the function failed, or Spark failed. There is no output."""
EXIT_WRONG: Final = 2
"""The command is wrong, or something is not installed. No call was made."""
EXIT_DEAD_LETTERS: Final = 3
"""The output is complete, but some rows are dead letters: their calls failed."""
EXIT_INTERRUPTED: Final = 130
"""Ctrl-C or SIGTERM stopped the command. Shells use the same status after Ctrl-C."""


class CommandError(Exception):
    """The user has made a mistake. The text of the exception is the whole message to the user."""


class JobError(Exception):
    """A call of the function failed, or Spark failed. The text is the whole message to the user."""


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
"""Maps the names of arguments in error messages to the options of the command."""


def command_message(refused: Exception) -> str:
    """Return the message of an error, with the command's options instead of argument names."""
    text = one_line_message(str(refused))
    for word, option in _OPTIONS.items():
        text = re.sub(rf"^{re.escape(word)}(?=[:= ])", option, text)
    return text.replace("the frame", "the input")


def one_line_message(text: str) -> str:
    """Return an error message of Spark on one line, without the query plan and the stack trace."""
    message, _, _ = text.strip().partition("\n\n")
    message, _, _ = message.partition("\n== ")
    message, _, _ = message.partition(";\n'")
    message, _, _ = message.partition("\nJVM stacktrace")
    return " ".join(line.strip() for line in message.splitlines() if not _FRAME(line))


_FRAME: Final = re.compile(r"\s+at [\w.$/@]+\(|\s*\.\.\. \d+ more").match

_CONDITION: Final = re.compile(r"\[[A-Z0-9_.]+\] (.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_CAUSE: Final = re.compile(r"^Caused by: (?:\w+\.)*", re.MULTILINE)


def spark_message(text: str) -> str:
    """Return the messages of a failed Spark job and its causes on one line, without stack traces.

    If Spark could not read a record of the input, the line also names options that may help.
    """
    messages: list[str] = []
    for each in _CAUSE.split(text):
        # Exceptions of Java itself have no error condition in brackets. Include them: an exception
        # of this kind may be the only cause.
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
"""Matches the margin at the left of each line in the traceback of an exception group."""
_RULE: Final = re.compile(r"\s*\+-[-+]*( (\d+|\.\.\.) -+)?$")
"""Matches a line that separates two exceptions in the traceback of an exception group."""
_JAVA: Final = re.compile(r"\s*(SQLSTATE:|Driver stacktrace:|JVM stacktrace:)")
"""Matches the first line of Java's text after the message of a Python exception."""


def worker_exception(text: str) -> str | None:
    """Return the exception that a Python worker raised, with only the stack frames of user's code.

    Return ``None`` if no worker raised an exception.
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
            parts[-1].clear()  # drop the lines of the exception's cause
        else:
            parts[-1].append(line[margin.end() :])
    return "\n".join(filter(None, map(_user_lines, parts)))


def _user_lines(lines: Sequence[str]) -> str:
    """Return the message of a traceback, followed by the stack frames of user's code."""
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
    if path.is_relative_to(here):  # a project directory may be named like a library
        path = path.relative_to(here)
    return not any(part in _LIBRARIES for part in path.parts) and not file.startswith("<")


def exception_line(raised: BaseException) -> str:
    """Return an exception of the user's module on one line, with the file and line of the error."""
    own = [f for f in traceback.extract_tb(raised.__traceback__) if _is_user_file(f.filename)]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    # ``format_exception_only`` would return several lines for some exceptions, and their notes.
    return one_line_message(f"{type(raised).__name__}: {raised}".removesuffix(": ")) + where
