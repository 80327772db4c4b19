"""Docstrings as Markdown: `::` before an indented example is reStructuredText's, and goes."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ALONE = re.compile(r"^::\n", re.MULTILINE)
_AT_THE_END = re.compile(r"::\n(?=\n +\S)")


def as_markdown(docstring: str) -> str:
    """The docstring with its examples as Markdown has them."""
    return _AT_THE_END.sub(":\n", _ALONE.sub("", docstring))


class Restructured(griffe.Extension):
    """Changes each docstring as it is read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for each object that it has read."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
