"""URL paths: the different spellings that a server, proxy or framework may take for the same path."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterable

_ODD = re.compile(r"//|/\.|/$|[%;\\]|[\x00-\x20\x7f]|^[^/]")
"""Characters that allow a path to be read as another one. Most paths have none of them."""
_AT_ITS_END = re.compile(r"[\x00-\x20\x7f]+$")
_PARAMETERS = re.compile(r";[^/]*")
_SLASHES = re.compile("/+")


def path_spellings(path: str) -> Iterable[str]:
    """The path itself, and every path that something between the client and a handler may read it as.

    In a regular expression, ``$`` also matches before a line feed; routers merge slashes and ignore a trailing one;
    servers drop parameters (``;a=b``) or anything before the first slash, resolve ``..``, treat a backslash as a slash,
    or decode twice.
    """
    if path != "/" and not _ODD.search(path):
        return (path,)
    found = {path: None}
    for reading in _READINGS:
        found |= dict.fromkeys(map(reading, tuple(found)))
    return found


def without_trailing_slash(path: str) -> str:
    """The path without trailing slashes, which frameworks ignore."""
    return path.rstrip("/") or "/"


def _without_end(path: str) -> str:
    return _AT_ITS_END.sub("", path)


def _without_parameters(path: str) -> str:
    return _PARAMETERS.sub("", path)


def _with_slashes(path: str) -> str:
    return path.replace("\\", "/")


def _rooted(path: str) -> str:
    return path[path.find("/") :] if "/" in path else path


def _merged(path: str) -> str:
    return _SLASHES.sub("/", f"/{path}")


def _followed(path: str) -> str:
    return posixpath.normpath(f"/{path.lstrip('/')}")


_READINGS = (
    unquote,
    _with_slashes,
    _rooted,
    _without_end,
    _without_parameters,
    _merged,
    _followed,
    without_trailing_slash,
)
"""In this order: each reading may make the next one possible."""
