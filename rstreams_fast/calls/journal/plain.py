"""Converts plain answers to JSON texts and back, with a mark for types that JSON lacks."""

from __future__ import annotations

import base64
import datetime as dt
import json
import sys
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

__all__ = ["answer_of", "text_of_answer"]

_JSON_TYPES: Final = frozenset({type(None), bool, int, float, str})

_MARK: Final = "$"
"""If the only key of a JSON object begins with this character, the object stands for a value of a
type that JSON lacks."""

_encode: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode

_MOST_BITS: Final = 2048
"""An ``int`` with more bits is stored in hexadecimal form: Python limits the number of decimal
digits that it converts."""


def text_of_answer(answer: Any) -> str:
    """Return the text of an answer. Raises ``TypeError`` if a part of it is no plain value."""
    text = _encode(_pack(answer))
    try:
        text.encode()
    except UnicodeEncodeError:  # UTF-8, which Arrow uses, cannot encode a surrogate
        # Do not use the escapes of JSON: they make one character of two surrogates.
        return _encode({"$surrogates": _base64(text.encode("utf-8", "surrogatepass"))})
    return text


def answer_of(text: str) -> Any:
    """Return the answer from which ``text_of_answer`` made ``text``."""
    return _unpack(json.loads(text))


def _pack(value: Any) -> Any:
    kind = type(value)
    if kind in _JSON_TYPES:
        if kind is int and value.bit_length() > _MOST_BITS:
            return {"$int": hex(value)}
        return value
    if kind is list:
        return list(map(_pack, value))
    if kind is dict:
        if all(type(key) is str and not key.startswith(_MARK) for key in value):
            return {key: _pack(one) for key, one in value.items()}
        return {"$dict": [[_pack(key), _pack(one)] for key, one in value.items()]}
    if kind in _WRITERS:
        name, write = _WRITERS[kind]
        return {name: write(value)}
    if (np := sys.modules.get("numpy")) and isinstance(value, np.number | np.bool_):
        number = value.item()
        if type(number) is not kind:  # Python has no type for ``numpy.longdouble``
            return _pack(number)
    if (pa := sys.modules.get("pyarrow")) and kind is pa.RecordBatch:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write_batch(value)
        return {"$batch": _base64(sink.getvalue())}
    raise _refusal(f"a {kind.__qualname__}", "a dict, say")


def _refusal(found: str, wanted: str) -> TypeError:
    return TypeError(
        f"a journal keeps plain values: an answer has {found}, which is none; give {wanted}"
    )


def _unpack(value: Any) -> Any:
    kind = type(value)
    if kind is list:
        return list(map(_unpack, value))
    if kind is not dict:
        return value
    if len(value) == 1:
        ((name, content),) = value.items()
        if name in _READERS:
            return _READERS[name](content)
    return {key: _unpack(one) for key, one in value.items()}


def _base64(content: Any) -> str:
    return base64.b64encode(content).decode()


def _clock_text(value: dt.datetime | dt.time) -> str:
    """Return ``value`` as ISO 8601 has it, then "f" for ``fold=1``, then the name of a zone."""
    zone, name = value.tzinfo, ""
    if zone is not None and type(zone) is not dt.timezone:
        from zoneinfo import ZoneInfo

        if isinstance(zone, ZoneInfo) and zone.key is not None:
            value, name = value.replace(tzinfo=None), f" {zone.key}"
        elif value.utcoffset() is None:  # a ``time`` whose offset depends on the date
            kind = type(zone)
            raise _refusal(f"a {kind.__module__}.{kind.__qualname__}", "a ZoneInfo with a key")
    return value.isoformat() + "f" * value.fold + name


def _clock_of(kind: type[Any]) -> Callable[[str], Any]:
    """Return a function that makes a ``kind`` of the text that ``_clock_text`` has made."""

    def read(text: str) -> Any:
        text, _, name = text.partition(" ")
        value = kind.fromisoformat(text.removesuffix("f"))
        if text.endswith("f"):
            value = value.replace(fold=1)
        if name:
            from zoneinfo import ZoneInfo

            value = value.replace(tzinfo=ZoneInfo(name))
        return value

    return read


def _batch(text: str) -> Any:
    import pyarrow as pa

    with pa.ipc.open_stream(base64.b64decode(text)) as reader:
        return reader.read_next_batch()


_WRITERS: Final[dict[type, tuple[str, Callable[[Any], Any]]]] = {
    tuple: ("$tuple", lambda value: list(map(_pack, value))),
    bytes: ("$bytes", _base64),
    dt.datetime: ("$datetime", _clock_text),
    dt.date: ("$date", dt.date.isoformat),
    dt.time: ("$time", _clock_text),
    dt.timedelta: ("$timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    Decimal: ("$decimal", str),
    uuid.UUID: ("$uuid", str),
}

_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "$dict": lambda pairs: {_unpack(key): _unpack(one) for key, one in pairs},
    "$tuple": lambda parts: tuple(map(_unpack, parts)),
    "$bytes": base64.b64decode,
    "$datetime": _clock_of(dt.datetime),
    "$date": dt.date.fromisoformat,
    "$time": _clock_of(dt.time),
    "$timedelta": lambda parts: dt.timedelta(*parts),
    "$decimal": Decimal,
    "$uuid": uuid.UUID,
    "$batch": _batch,
    "$int": lambda digits: int(digits, 16),
    "$surrogates": lambda text: answer_of(base64.b64decode(text).decode("utf-8", "surrogatepass")),
}
