"""Once: a decorator for tasks. One that arrives twice has its effect once, in the transaction of its inbox mark."""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from postroom.compose.transactions import Transactions
from postroom.errors import InvalidSetting, UnusableConnection
from postroom.inbox import Inbox
from postroom.runtime.functions import check_function, is_async, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_running: ContextVar[str | None] = ContextVar("postroom_once", default=None)
"""The task whose function is being run, with its mark in a transaction that is still open."""


def once_decorator(
    inbox: object, transactions: object, current_id: Callable[[], str | None], repeated: Callable[[], None]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator for functions whose first parameter, after ``self``, is the transaction's connection or session.

    `current_id` gives the id of the task that is being run, None outside a worker: then nothing is marked. `repeated`
    is called for a task that was done before. Raises `InvalidSetting`.
    """
    if not isinstance(inbox, Inbox):
        raise InvalidSetting(f"once takes an Inbox, not a {type(inbox).__name__}: write @once(Inbox(name), engine)")
    opener = Transactions(transactions, None, "task")
    if transactions is None:
        raise InvalidSetting("once needs what opens transactions: write @once(Inbox(name), engine)")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        check_function(function, "the function of once")
        place, signature = _without_connection(function)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with _started(current_id()) as task, opener.blocking() as connection:
                if task is not None and not inbox.first_time(connection, task):
                    return repeated()
                result = function(*args[:place], connection, *args[place:], **kwargs)
                if task is not None:
                    require_mark(is_there=inbox.is_marked(connection, task))
                return result

        @functools.wraps(function)
        async def arun(*args: Any, **kwargs: Any) -> Any:
            with _started(current_id()) as task:
                async with opener.waiting() as connection:
                    if task is not None and not await inbox.afirst_time(connection, task):
                        return repeated()
                    result = await function(*args[:place], connection, *args[place:], **kwargs)
                    if task is not None:
                        require_mark(is_there=await inbox.ais_marked(connection, task))
                    return result

        wrapper: Any = arun if is_async(function) else run
        wrapper.__signature__ = signature
        decorated: Callable[..., Any] = wrapper
        return decorated

    return decorate


def require_mark(*, is_there: bool) -> None:
    """Raise `UnusableConnection` if the function has undone its transaction, and the mark with it.

    To ask for the mark raises by itself where PostgreSQL has aborted the transaction and the function has gone on.
    """
    if not is_there:
        raise UnusableConnection(
            "the function has rolled back its transaction, and the mark with it: leave its end to who has opened it"
        )


@contextmanager
def _started(task: str | None) -> Iterator[str | None]:
    """The task to mark; None if a function that runs for this task calls another with `once`, as any other function.

    Else the second would wait for the end of the first one's transaction, which waits for the second.
    """
    if task is None or task == _running.get():
        yield None
        return
    token = _running.set(task)
    try:
        yield task
    finally:
        _running.reset(token)


def _without_connection(function: Callable[..., Any]) -> tuple[int, inspect.Signature]:
    """Which parameter the connection is, and the signature that callers of the task see."""
    signature = inspect.signature(function)
    parameters = [*signature.parameters.values()]
    place = 1 if parameters and parameters[0].name == "self" else 0
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) <= place or parameters[place].kind not in positional:
        raise InvalidSetting(
            f"{name_of(function)}{signature} has no parameter for the connection: once gives it as the first one, "
            "after self"
        )
    return place, signature.replace(parameters=parameters[:place] + parameters[place + 1 :])
