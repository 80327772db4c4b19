"""One path, however it is spelled: what a server, a proxy or a framework may take it for."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterable

_ODD = re.compile(r"//|/\.|/$|[%;\\]|[\x00-\x20\x7f]|^[^/]")
"""What a path may be taken for another one by. Most have none of it."""
_AT_ITS_END = re.compile(r"[\x00-\x20\x7f]+$")
_PARAMETERS = re.compile(r";[^/]*")
_SLASHES = re.compile("/+")


def spellings(path: str) -> Iterable[str]:
    """The path as it is, and every path that something between the client and a handler may read it as.

    The end of a regular expression matches before a line feed; routers merge slashes, and ignore one at the end;
    servers drop parameters (``;a=b``) or what precedes the first slash, follow ``..``, take a backslash for a slash, or
    decode twice.
    """
    if path != "/" and not _ODD.search(path):
        return (path,)
    found = {path: None}
    for reading in _READINGS:
        found |= dict.fromkeys(map(reading, tuple(found)))
    return found


def plain(path: str) -> str:
    """The path without a slash at its end, which frameworks do not tell apart."""
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


_READINGS = (unquote, _with_slashes, _rooted, _without_end, _without_parameters, _merged, _followed, plain)
"""In the order in which one makes way for the next."""
