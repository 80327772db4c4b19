"""What is known of another outbox's rows: where their table is, where they stand, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroom.message import Message
    from postroom.rules.importing.layouts import Left


@dataclass(frozen=True, slots=True)
class ForeignNames:
    """Where the table is. Its parts are validated identifiers."""

    schema: str | None
    table: str
    columns: Mapping[str, str] = field(default_factory=dict)
    """Names of columns that differ from those by default."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that come from columns of their own: the header's name → the column."""

    @property
    def shown(self) -> str:
        """As the user wrote it."""
        return self.table if self.schema is None else f"{self.schema}.{self.table}"


class Place(NamedTuple):
    """Where a row stands in the order, as the driver returned it; the last is its id."""

    values: tuple[Any, ...]


class Found(NamedTuple):
    """A row that may be taken."""

    place: Place
    size: int
    """Bytes of its payload."""
    key: str | bytes | None = None
    leased: bool = False
    """Whether it holds back the rows behind it on its key."""


@dataclass(slots=True)
class Taken:
    """What one transaction did, or would do."""

    added: list[Message] = field(default_factory=list)
    duplicates: int = 0
    """Rows that are in our outbox already, as the same message."""
    left: list[Left] = field(default_factory=list)
    reached: Place | None = None
    """The last row that it looked at; None if there was none."""
