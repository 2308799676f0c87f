"""How a journal stores answers: in an Arrow column of a segment file (a file of answers)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AnswerForm"]


class AnswerForm(Protocol):
    """Converts answers to an Arrow column of a segment file, and values of a column to answers."""

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the column. Answers of another type are in another folder."""

    @property
    def text(self) -> str:
        """A text that identifies the form. Answers stored under another text are not found."""

    def array(self, answers: list[Any]) -> pa.Array:
        """Return an Arrow array of ``answers``. Raises anything if an answer cannot be stored."""

    def value(self, scalar: pa.Scalar) -> Any:
        """Return the answer from which ``array`` made ``scalar``."""
