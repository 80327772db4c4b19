"""Read the arguments of a command that are plain to read, as Typer would, and without it.

A relay starts a quarter sooner. Whatever is not plain is left to Typer: help, mistakes, and rare ways to write things.
"""

from __future__ import annotations

import re
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from postroom.cli.option import Option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_NUMBERS: dict[type, re.Pattern[str]] = {int: re.compile("[0-9]{1,15}"), float: re.compile(r"[0-9]{1,15}(\.[0-9]+)?")}


class _NotPlain(Exception):
    """Typer shall read it."""


class _Flag(NamedTuple):
    parameter: str
    kind: Any
    option: Option
    value: bool | None
    """What it stands for by itself; None if a value follows."""


def read(function: Callable[..., None], arguments: Sequence[str]) -> dict[str, Any] | None:
    """The parameters that the arguments give a value; None if they are for Typer to read."""
    given: dict[str, Any] = {}
    try:
        flags = dict(_flags(function))
        remaining = iter(arguments)
        for argument in remaining:
            _read_one(flags, argument, remaining, given)
    except _NotPlain:
        return None
    needed = function.__code__.co_varnames[: function.__code__.co_argcount - len(function.__defaults__ or ())]
    return given if given.keys() >= set(needed) else None


def _read_one(flags: dict[str, _Flag], argument: str, remaining: Iterator[str], given: dict[str, Any]) -> None:
    name, equals, value = argument.partition("=")
    flag = flags.get(name)
    if flag is None:
        raise _NotPlain
    if flag.value is not None:
        if equals or flag.parameter in given:
            raise _NotPlain
        given[flag.parameter] = flag.value
        return
    text = value if equals else next(remaining, "")
    if not text or text.startswith("-"):
        raise _NotPlain
    if flag.kind == list[str]:
        given.setdefault(flag.parameter, []).append(text)
    elif flag.parameter in given:
        raise _NotPlain
    else:
        given[flag.parameter] = _value(text, flag)


def _value(text: str, flag: _Flag) -> Any:
    if flag.kind is str:
        return text
    if get_origin(flag.kind) is Literal:
        if text not in get_args(flag.kind):
            raise _NotPlain
        return text
    if flag.kind not in _NUMBERS or not _NUMBERS[flag.kind].fullmatch(text):
        raise _NotPlain
    number = flag.kind(text)
    least, most = flag.option.min, flag.option.max
    if (least is not None and number < least) or (most is not None and number > most):
        raise _NotPlain
    return number


def _flags(function: Callable[..., None]) -> Iterator[tuple[str, _Flag]]:
    hints = get_type_hints(function, include_extras=True)
    del hints["return"]
    for parameter, annotation in hints.items():
        kind, option = get_args(annotation)
        if not isinstance(option, Option):
            raise _NotPlain
        several = [one for one in get_args(kind) if one is not NoneType] if NoneType in get_args(kind) else [kind]
        on, _, off = (option.names[0] if option.names else f"--{parameter.replace('_', '-')}").partition("/")
        is_switch = several == [bool]
        yield on, _Flag(parameter, several[0], option, value=True if is_switch else None)
        if off:
            yield off, _Flag(parameter, bool, option, value=False)
