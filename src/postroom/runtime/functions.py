"""Functions of the user's: load one by name, tell whether it is async, and call it."""

from __future__ import annotations

import importlib
import inspect
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from postroom.errors import InvalidSetting
from postroom.rules.failures import with_place
from postroom.telemetry.tracebacks import raised_at

if TYPE_CHECKING:
    from collections.abc import Callable


def load_object(address: str, shown: str, expected: str) -> Any:
    """Import what ``module:object`` names; modules in the working directory are found too.

    `shown` is the address as the user wrote it, `expected` says what it should name. Raises `InvalidSetting`.
    """
    module, _, path = address.partition(":")
    if not module or not path:
        raise InvalidSetting(f"{shown} does not name {expected}")
    found = load_module(module, shown)
    try:
        for name in path.split("."):
            found = getattr(found, name)
    except Exception as error:
        raise InvalidSetting(f"{shown} cannot be loaded: {_problem(module, error)}") from error
    return found


def load_module(module: str, shown: str) -> Any:
    """Import a module; those in the working directory are found too. `shown` is as the user wrote it.

    Raises `InvalidSetting`.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise InvalidSetting(f"{shown} cannot be loaded: {_problem(module, error)}") from error


def _problem(module: str, error: Exception) -> str:
    said = f"{type(error).__name__}: {error}".removesuffix(": ")
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return f"{said}, neither in the working directory nor installed"
    return with_place(said, raised_at(error))


def is_async(function: Any) -> bool:
    """Whether calling it returns an awaitable; sees through partials and callable objects."""
    if isinstance(function, partial):
        return is_async(function.func)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - an object with an async __call__


def name_of(function: Any) -> str:
    """The function's name for messages; sees through partials and callable objects."""
    if isinstance(function, partial):
        return name_of(function.func)
    return str(getattr(function, "__qualname__", type(function).__qualname__)).rpartition("<locals>.")[2]


def check_function(function: Any, role: str) -> None:
    """Raise `InvalidSetting` unless it is a function that a call runs. `role` says what it was given as."""
    if not callable(function):
        raise InvalidSetting(
            f"{role} is of type {type(function).__name__}, which cannot be called: pass the function itself, without "
            "calling it"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidSetting(f"{role} {name_of(function)} is a generator: a call would not run it; use no yield")


def check_sync(function: Any, remedy: str) -> None:
    """Raise `InvalidSetting`, with the remedy, if the function is async."""
    if is_async(function):
        raise InvalidSetting(f"{name_of(function)} is async: {remedy}")


def plain_result(result: Any, function: Callable[..., Any], remedy: str) -> Any:
    """What a sync function returned; raises `InvalidSetting` if that must be awaited, as an async lambda's result."""
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()  # it would warn that nobody awaited it
    raise InvalidSetting(f"{name_of(function)} returned something to await: {remedy}")


async def awaited(result: Any) -> Any:
    """What a sync or async function returned, awaited if need be."""
    return await result if inspect.isawaitable(result) else result
