"""The ids of messages, as arguments of commands."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer


def _message_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a message id: give a UUID, as the lists show it") from None


MessageId = Annotated[UUID, typer.Argument(metavar="ID", parser=_message_id, help="The message's id.")]
MessageIds = Annotated[list[UUID] | None, typer.Argument(metavar="ID", parser=_message_id, help="The messages' ids.")]
