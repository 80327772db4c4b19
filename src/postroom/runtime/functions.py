"""Functions of the user's: load one by name, and tell whether it is async."""

from __future__ import annotations

import importlib
import inspect
import sys
from functools import partial
from pathlib import Path
from typing import Any

from postroom.errors import InvalidSetting
from postroom.rules.failures import with_place
from postroom.telemetry.tracebacks import raised_at


def load_object(address: str, shown: str, expected: str) -> Any:
    """Import what ``module:object`` names; modules in the working directory are found too.

    `shown` is the address as the user wrote it, `expected` says what it should name. Raises `InvalidSetting`.
    """
    module, _, path = address.partition(":")
    if not module or not path:
        raise InvalidSetting(f"{shown} does not name {expected}")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except Exception as error:
        raise InvalidSetting(f"{shown} cannot be loaded: {_problem(module, error)}") from error
    return found


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
