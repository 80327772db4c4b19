"""What a person is told when a page cannot be made."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from postroom.errors import (
    DatabaseUnreachable,
    DriverMissing,
    InvalidMessage,
    InvalidSetting,
    MessageNotFound,
    PostroomError,
    PrivilegeMissing,
    SagaNotFound,
    SchemaError,
    TransactionNotFound,
)
from postroom.web.dashboard.params import BadInput
from postroom.web.dashboard.visit import Denied


class LoginFailed(Exception):
    """The application's own login raised an error, or gave something that is neither a right nor a refusal."""


class Failure(NamedTuple):
    """An HTTP status, a title and a text."""

    status: int
    title: str
    text: str
    explained: bool = True
    """Otherwise the log must say what happened."""


_TOLD: tuple[tuple[tuple[type[Exception], ...], int, str], ...] = (
    ((BadInput, InvalidSetting, InvalidMessage), 400, "This cannot be asked"),
    ((Denied,), 403, "You may not do this"),
    ((MessageNotFound, SagaNotFound, TransactionNotFound), 404, "Not found"),
    ((DatabaseUnreachable, SchemaError, DriverMissing), 503, "The database is away"),
    ((PrivilegeMissing,), 503, "The database's user may not do this"),
    ((PostroomError,), 409, "This is not possible now"),
)
"""Errors whose text is for the person, with the status and the title of their page; the first that fits."""


def failure_of(error: Exception) -> Failure:
    """The failure that an error is. Texts of errors that are not ours stay in the log: they may quote payloads."""
    for kinds, status, title in _TOLD:
        if isinstance(error, kinds):
            return Failure(status, title, str(error))
    if isinstance(error, LoginFailed):
        text = "Your application's login could not say who you are: the log says why."
        return Failure(500, "You cannot come in", text, explained=False)
    if isinstance(error, SQLAlchemyError):
        text = "It answered with an error, which is in the log. Try again."
        return Failure(503, "The database refused", text, explained=False)
    return Failure(500, "This page failed", "The log says why. The rest of the dashboard goes on.", explained=False)
