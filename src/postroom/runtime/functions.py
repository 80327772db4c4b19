"""What users give us to call: found by its name, and whether a call has to be awaited."""

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


def named(address: str, shown: str, wanted: str) -> Any:
    """The object that ``module:object`` names; modules of the working directory are found too.

    `shown` is how the user wrote the address, `wanted` how to write one. Raises `InvalidSetting`.
    """
    module, _, path = address.partition(":")
    if not module or not path:
        raise InvalidSetting(f"{shown} does not name {wanted}")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except Exception as error:
        said = with_place(f"{type(error).__name__}: {error}".removesuffix(": "), raised_at(error))
        raise InvalidSetting(f"{shown} cannot be loaded: {said}") from error
    return found


def is_async(function: Any) -> bool:
    """Whether a call of it has to be awaited; also of a partial one, and of an object that can be called."""
    if isinstance(function, partial):
        return is_async(function.func)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - an object with an async __call__
