"""How a journal stores answers: a type of Arrow for the column of a segment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AnswerForm"]


class AnswerForm(Protocol):
    """Converts answers to a column of a segment (a file), and values of the column to answers."""

    @property
    def type(self) -> pa.DataType:
        """The type of the column. Answers of another type are in another folder of the journal."""

    @property
    def text(self) -> str:
        """A text that identifies the form: answers with another text are not found."""

    def array(self, answers: list[Any]) -> pa.Array:
        """Return an Arrow array of ``answers``. Any exception means: an answer cannot be stored."""

    def value(self, scalar: pa.Scalar) -> Any:
        """Return the answer from which ``array`` made ``scalar``."""
