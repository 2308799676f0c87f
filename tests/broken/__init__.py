"""Implementations with one fault each. The import of the package registers all of them."""

from tests.broken import endless, processors, publishers, races, subscribers

__all__ = ["endless", "processors", "publishers", "races", "subscribers"]
