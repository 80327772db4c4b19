"""Renders the Helm chart without Helm: the part of Go's templates that the chart uses, and nothing else.

What is not known here is an error, so a template cannot slip through half understood.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_TAG = re.compile(r"(?P<before>\s*)\{\{-(?P<trimmed>.*?)(?P<a>-)?\}\}|\{\{(?P<plain>.*?)(?P<b>-)?\}\}", re.DOTALL)
_WORD = re.compile(r'\s*(?:(?P<string>"[^"]*")|(?P<number>\d+)|(?P<mark>[|()])|(?P<name>[$.\w]+)|(?P<rest>\S))')


class UnknownSyntax(Exception):
    """The chart uses something that this renderer does not know."""


@dataclass
class Block:
    """`if`, `with`, `range` or `define`, and what is between it and its `end`."""

    verb: str
    what: str
    body: list[str | Block | Tag] = field(default_factory=list)


@dataclass(frozen=True)
class Tag:
    """A pipeline whose value is written."""

    pipeline: str


class Chart:
    """The templates, by file, rendered with values."""

    def __init__(self, files: Mapping[str, str], root: Mapping[str, Any]) -> None:
        self._root = root
        self._defined: dict[str, Block] = {}
        self._parsed = {name: _parsed(text) for name, text in files.items()}
        for parts in self._parsed.values():
            for one in parts:
                if isinstance(one, Block) and one.verb == "define":
                    self._defined[json.loads(one.what)] = one

    def render(self, name: str) -> str:
        return self._write(self._parsed[name], self._root, {})

    def _write(self, parts: Sequence[str | Block | Tag], dot: Any, variables: Mapping[str, Any]) -> str:
        return "".join(self._part(part, dot, variables) for part in parts)

    def _part(self, part: str | Block | Tag, dot: Any, variables: Mapping[str, Any]) -> str:  # noqa: PLR0911 - one for each kind
        match part:
            case str():
                return part
            case Tag():
                return _shown(self._value(part.pipeline, dot, variables))
            case Block(verb="define"):
                return ""
            case Block(verb="if"):
                return self._write(part.body, dot, variables) if self._value(part.what, dot, variables) else ""
            case Block(verb="with"):
                inner = self._value(part.what, dot, variables)
                return self._write(part.body, inner, variables) if inner else ""
            case Block(verb="range"):
                names, _, what = part.what.rpartition(":=")
                found = self._value(what, dot, variables) or []
                if not names:
                    return "".join(self._write(part.body, one, variables) for one in found)
                key, value = (name.strip() for name in names.split(","))
                return "".join(
                    self._write(part.body, found[one], {**variables, key: one, value: found[one]})
                    for one in sorted(found)
                )
            case _:
                raise UnknownSyntax(part.verb)

    def _value(self, pipeline: str, dot: Any, variables: Mapping[str, Any]) -> Any:
        words = _words(pipeline)
        value = self._pipeline(words, dot, variables)
        if words:
            raise UnknownSyntax(pipeline)
        return value

    def _pipeline(self, words: list[str], dot: Any, variables: Mapping[str, Any]) -> Any:
        piped: list[Any] = []
        while True:
            operands: list[Any] = []
            function = words.pop(0) if re.fullmatch(r"[a-zA-Z]+", words[0]) else ""
            while words and words[0] not in ("|", ")"):
                operands.append(self._operand(words, dot, variables))
            operands += piped
            if function:
                piped = [self._call(function, operands)]
            elif len(operands) == 1:
                piped = operands
            else:
                raise UnknownSyntax(f"several values without a function: {operands}")
            if not words or words[0] == ")":
                return piped[0]
            words.pop(0)

    def _operand(self, words: list[str], dot: Any, variables: Mapping[str, Any]) -> Any:
        word = words.pop(0)
        if word == "(":
            value = self._pipeline(words, dot, variables)
            words.pop(0)
            return value
        if word.startswith('"') or word.isdigit():
            return json.loads(word)
        head, *path = word.split(".")
        if head == "":
            value = dot
        elif head == "$":
            value = self._root
        elif head in variables:
            value = variables[head]
        else:
            raise UnknownSyntax(word)
        for step in path:
            value = value.get(step) if step else value
        return value

    def _call(self, function: str, operands: list[Any]) -> Any:
        functions: dict[str, Callable[..., Any]] = {
            "include": lambda name, dot: self._write(self._defined[name].body, dot, {}),
            "dict": lambda *pairs: dict(zip(pairs[::2], pairs[1::2], strict=True)),
            "toYaml": lambda value: yaml.safe_dump(value, sort_keys=True).removesuffix("\n").removesuffix("\n..."),
            "nindent": lambda width, text: "".join(f"\n{' ' * width}{line}" for line in text.split("\n")),
            "quote": lambda value: json.dumps(_shown(value)),
            "default": lambda fallback, value=None: value or fallback,
        }
        if function not in functions:
            raise UnknownSyntax(function)
        return functions[function](*operands)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, dict | list):
        raise UnknownSyntax(f"{value!r} is written as it is")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _words(pipeline: str) -> list[str]:
    words = []
    for found in _WORD.finditer(pipeline.strip()):
        if found["rest"]:
            raise UnknownSyntax(pipeline)
        words.append(found[0].strip())
    return words


def _parsed(text: str) -> list[str | Block | Tag]:
    file = Block("file", "")
    open_blocks = [file]
    for piece in _pieces(text):
        if isinstance(piece, str):
            open_blocks[-1].body.append(piece)
            continue
        verb, _, what = piece.pipeline.strip().partition(" ")
        if verb in ("if", "with", "range", "define"):
            block = Block(verb, what.strip())
            open_blocks[-1].body.append(block)
            open_blocks.append(block)
        elif verb == "end":
            open_blocks.pop()
        elif verb in ("else", "template", "block", "break", "continue") or ":=" in piece.pipeline:
            raise UnknownSyntax(piece.pipeline)
        else:
            open_blocks[-1].body.append(piece)
    if open_blocks != [file]:
        raise UnknownSyntax("a block has no end")
    return file.body


def _pieces(text: str) -> Iterator[str | Tag]:
    at = 0
    while found := _TAG.search(text, at):
        yield text[at : found.start()]
        yield Tag(found["plain"] if found["trimmed"] is None else found["trimmed"])
        at = found.end()
        if found["a"] or found["b"]:
            at += len(text[at:]) - len(text[at:].lstrip())
    yield text[at:]
