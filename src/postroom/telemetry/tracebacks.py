"""Tracebacks: where in the user's code an exception was raised. They never show values of variables."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

LONGEST = 16_000
"""Characters of a traceback that are kept: its end, which says most."""
LONGEST_LINE = 300
MOST_CAUSES = 10
AFTERWARDS = "when its changes were flushed or committed, after it had returned"
"""The note on an error raised after a handler or a step: none of its lines raised it."""
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_LIBRARIES = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_PACKAGES = re.compile(r"[/\\](site|dist)-packages[/\\]")
_GENERATED = re.compile(r"<(?!stdin|string|console|(i?python-)?input)")
"""Code that a library generated, such as `<sqlalchemy generated …>`; not what a user typed in."""
_CREDENTIALS = re.compile(r"://[^/\s@]*@")


class Place(NamedTuple):
    """A line of code."""

    file: str
    line: int
    function: str

    def shown(self) -> str:
        """Show the file relative to the working directory, if it is below that."""
        return f"{self.file.removeprefix(f'{Path.cwd()}{os.sep}')}:{self.line}, in {self.function}"


def raised_at(error: BaseException) -> str:
    """File, line and function, as in ``billing.py:14, in bill``: the innermost line of the user's own code.

    If the error passed no such line, its causes are searched: for a call that timed out, that is where the call waited.
    If all lines belong to libraries, the first of them is shown, which is what Postroom called; or that the handler
    had already returned. Empty if only Postroom's own code took part.
    """
    fallback: Place | None = None
    for one in _causes(error):
        places = [place for place in _places(one) if not place.file.startswith(_OURS)]
        own = [place for place in places if not _is_library(place.file)]
        if own:
            return own[-1].shown()
        fallback = fallback or (places[0] if places else None)
    if AFTERWARDS in getattr(error, "__notes__", ()):
        return AFTERWARDS
    return fallback.shown() if fallback else ""


def written(error: BaseException) -> str:
    """The traceback in Python's format, starting at the user's code, without credentials in URLs."""
    own = _from_users_code(error.__traceback__)
    lines = traceback.TracebackException(type(error), error, own or error.__traceback__, compact=True).format()
    return without_credentials("".join(lines)).rstrip()[-LONGEST:]


def shown(error: BaseException) -> str:
    """The error's class and text in one line, shortened, without credentials in URLs."""
    said = f"{type(error).__qualname__}: {' '.join(str(error).split())}".removesuffix(": ")
    return without_credentials(said)[:LONGEST_LINE]


def without_credentials(text: str) -> str:
    """The text with user and password of every URL replaced by stars."""
    return _CREDENTIALS.sub("://***@", text)


def _causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    for _ in range(MOST_CAUSES):
        if one is None:
            return
        yield one
        one = one.__cause__ or one.__context__


def _places(error: BaseException) -> list[Place]:
    lines = traceback.walk_tb(error.__traceback__)
    return [Place(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in lines]


def _from_users_code(found: TracebackType | None) -> TracebackType | None:
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_OURS):
        found = found.tb_next
    return found


def _is_library(filename: str) -> bool:
    made_up = _GENERATED.match(filename) is not None
    return made_up or filename.startswith(_LIBRARIES) or _PACKAGES.search(filename) is not None
