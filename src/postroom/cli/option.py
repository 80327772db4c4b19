"""An option as a value. Typer's own are made from it when Typer is needed, which takes long to load."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_origin

if TYPE_CHECKING:
    from collections.abc import Callable


class Option(NamedTuple):
    """An option of a command, in its parameter's annotation: ``Annotated[int, option(…)]``."""

    names: tuple[str, ...]
    """As Typer takes them: ``--dedup/--no-dedup``. Without any, the parameter's name says it."""
    help: str
    metavar: str | None
    min: float | None
    max: float | None


def option(
    *names: str, help: str, metavar: str | None = None, min: float | None = None, max: float | None = None
) -> Option:
    """An option; the arguments are those of `typer.Option`."""
    return Option(names, help, metavar, min, max)


def for_typer(function: Callable[..., None]) -> Callable[..., None]:
    """The function, with Typer's options instead of ours in its signature."""
    signature = inspect.signature(function, eval_str=True)
    parameters = [one.replace(annotation=_of_typer(one.annotation)) for one in signature.parameters.values()]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # what typer reads
    return function


def _of_typer(annotation: Any) -> Any:
    if get_origin(annotation) is not Annotated:
        return annotation
    kind, given = get_args(annotation)
    if not isinstance(given, Option):
        return annotation
    import typer

    names, others = given.names, given._asdict()
    del others["names"]
    return Annotated[kind, typer.Option(*names, **others)]
