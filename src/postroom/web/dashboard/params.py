"""What a browser sends, read strictly: a wrong value is told to the person, and never reaches the database."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import StrEnum

    E = TypeVar("E", bound=StrEnum)

LONGEST = 1000
LAST = 2**63 - 1
FIRST_YEAR, LAST_YEAR = 1970, 9998
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGO = re.compile(r"(\d{1,6})\s*([smhd])")
UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
"""What databases do not take."""


class BadInput(ValueError):
    """A parameter has a wrong value: the text names it, and what it may be."""


class Params:
    """The parameters of a page or a form. Those that are empty count as not given."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def text(self, name: str, most: int = LONGEST) -> str | None:
        """A line of text."""
        value = self._given.get(name, "").strip()
        if len(value) > most:
            raise BadInput(f"{name} has {len(value):,} characters: give at most {most:,}")
        if found := UNSTORABLE.search(value):
            raise BadInput(f"{name} contains the character {found[0]!r}: leave it out")
        return value or None

    def needed(self, name: str) -> str:
        """A line of text that must be there."""
        value = self.text(name)
        if value is None:
            raise BadInput(f"{name} is missing: give it")
        return value

    def choice(self, name: str, kind: type[E]) -> E | None:
        """One of a closed set."""
        value = self.text(name)
        if value is None:
            return None
        try:
            return kind(value)
        except ValueError:
            raise BadInput(f"{name} = {value!r} is not valid: use {', '.join(kind)}") from None

    def one_of(self, name: str, *choices: str) -> str:
        """One of some words; the first one if nothing is given."""
        value = self.text(name) or choices[0]
        if value not in choices:
            raise BadInput(f"{name} = {value!r} is not valid: use {', '.join(choices)}")
        return value

    def number(self, name: str, least: int = 1, most: int = LAST) -> int | None:
        """A whole number."""
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"\d{1,19}", value, re.ASCII) or not least <= int(value) <= most:
            raise BadInput(f"{name} = {value!r} is not valid: give a whole number from {least:,} to {most:,}")
        return int(value)

    def uuid(self, name: str) -> UUID:
        """The id of a message."""
        value = self.needed(name)
        try:
            return UUID(value)
        except ValueError:
            raise BadInput(f"{name} = {value!r} is not a message id: give a UUID, as the lists show it") from None

    def moment(self, name: str, now: datetime) -> datetime | None:
        """A moment in UTC, or how long ago it was: 15m, 2h, 7d."""
        value = self.text(name)
        if value is None:
            return None
        try:
            if ago := _AGO.fullmatch(value):
                return now - timedelta(seconds=int(ago[1]) * UNITS[ago[2]])
            return utc_moment(value)
        except (ValueError, OverflowError):
            raise BadInput(
                f"{name} = {value!r} is not a time: give how long ago, such as 15m, 2h or 7d, or a time in UTC, such "
                "as 2026-01-31 14:30"
            ) from None


def utc_moment(text: str) -> datetime:
    """A moment in UTC, in years that databases know, and from which some time can be taken or added.

    Raises `ValueError` or `OverflowError`.
    """
    moment = datetime.fromisoformat(text)
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        raise OverflowError(text)
    return moment
