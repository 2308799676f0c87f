"""Hides secrets of URIs in messages: the user before the ``@``, and the query."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

__all__ = ["SCHEME", "check_no_keys", "shown_uri", "without_secrets"]

SCHEME: Final = re.compile("[a-z][a-z0-9+.-]+:/{1,2}", re.IGNORECASE)
"""Matches the scheme at the beginning of a URI, with the slashes after it."""

_SECRETS: Final = re.compile(
    "secret|passw|pwd|token|credential|apikey|signature|(^|_|-)(auth|code|key|sig|sas)$",
    re.IGNORECASE,
)
"""Matches the names of query parameters that contain keys or passwords."""


def check_no_keys(name: str, uri: str) -> None:
    """Refuse a URI with a key, a password or a token in it. The error does not show the URI.

    A secret may contain a slash (as in AWS) or a line break. Then URI parsers find no password. So
    a URI is refused if there is a colon in the place of the host, and an ``@`` after the colon.
    """
    scheme = SCHEME.match(uri)
    if scheme is None:
        return
    after, query = uri[scheme.end() :], uri.partition("?")[2]
    authority = re.split("[/?#]", after)[0]
    refused = (
        ("@" in authority and uri.startswith("s3:"))  # in an s3 URI, the user name is an access key
        or (":" in authority and "@" in after.partition(":")[2])
        or ":@" in uri
        or "@" in query
        or any(_SECRETS.search(unquote(pair.partition("=")[0])) for pair in query.split("&"))
    )
    if refused:
        raise ValueError(
            f"{name} holds a key or a password, and logs and plans show URIs: "
            "give it by the environment of the executors (for S3 AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY), by a file of credentials there, or by a role"
        )


def shown_uri(uri: str) -> str:
    """Return the URI without its user and query. A path is returned unchanged."""
    if uri.startswith("/"):
        return uri
    scheme = SCHEME.match(uri)
    begin = scheme[0] if scheme else ""
    return begin + re.split("[?#]", uri[len(begin) :].rpartition("@")[2])[0]


def without_secrets(text: str, uri: str) -> str:
    """Return the error message ``text`` if it shows no secret of ``uri``, else a fixed text."""
    text = text.replace(uri, shown_uri(uri))
    user = uri.rpartition("@")[0].partition(":/")[2]
    values = [pair.rpartition("=")[2] for pair in uri.partition("?")[2].split("&")]
    hidden = filter(None, [*re.split(r"[/:]+", user), *values])
    shows = any(re.search(rf"\b{re.escape(part)}\b", text) for part in hidden)
    return "its address is not one that pyarrow takes" if shows else text
