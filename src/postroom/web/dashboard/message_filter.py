"""The filter bar of messages: typed fields, a search line that is turned into them, and the filters that they make."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import UUID

import msgspec

from postroom.admin import Filter, State
from postroom.web.dashboard.params import UNSTORABLE, BadInput, Params, utc_moment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from postroom.web.dashboard.visit import Visit

TEXTS = ("queue", "topic", "type", "key", "code", "error", "payload", "fingerprint")
"""Fields that are text, and are called the same in `Filter`."""
FIELDS = ("state", *TEXTS, "none", "since", "until")
EMPTY = ("topic", "code", "fingerprint")
"""Fields that a group of dead letters may have none of: the field `none` lists them."""
UNSENT = (State.PENDING, State.WAITING)
LABELS = {
    "state": "State",
    "queue": "Queue",
    "topic": "Topic",
    "type": "Type",
    "key": "Key",
    "code": "Error code",
    "error": "Error text",
    "payload": "Payload text",
    "fingerprint": "Error like",
    "none": "Without",
    "since": "Since",
    "until": "Until",
}


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """What a person has asked for. `texts` has the fields that are given."""

    state: State | None
    texts: Mapping[str, str]
    since: datetime | None
    until: datetime | None
    written: Mapping[str, str]
    """The fields as they were written, for the form."""

    @classmethod
    def read(cls, params: Params, now: datetime) -> MessageFilter:
        """The filter of a page's parameters. Raises `BadInput`."""
        state = params.choice("state", State)
        texts = {name: value for name in TEXTS if (value := params.text(name))} | _empty(params)
        if "fingerprint" in texts:
            texts["fingerprint"] = unescaped(texts["fingerprint"])
        since, until = params.moment("since", now), params.moment("until", now)
        if since and until and since >= until:
            raise BadInput(f"since = {since:%Y-%m-%d %H:%M} is not before until = {until:%Y-%m-%d %H:%M}: swap them")
        if ("fingerprint" in texts or "code" in texts) and state not in (None, State.DEAD):
            raise BadInput("code and fingerprint select dead letters: leave them out, or set state to dead")
        if "fingerprint" in texts or "code" in texts:
            state = State.DEAD
        written = {name: value for name in FIELDS if (value := params.text(name))}
        return cls(state, texts, since, until, written | ({"state": state.value} if state else {}))

    @property
    def query(self) -> str:
        """The parameters that lead to this page again."""
        return urlencode(self.written)

    def without(self, name: str) -> str:
        """The parameters without one field."""
        return urlencode({key: value for key, value in self.written.items() if key != name})

    def listing(self) -> dict[str, Any]:
        """The arguments of `Admin.messages`."""
        return {**self.texts, "status": self.state, "since": self.since, "until": self.until}

    def selection(self, as_of: datetime | None = None) -> Filter:
        """The filter of dead letters and of what is not sent. `as_of` leaves out what came later."""
        texts: dict[str, Any] = dict(self.texts)
        status = self.state if self.state in UNSENT else None
        return Filter(**texts, since=self.since, until=self.until, as_of=as_of, status=status)

    def fixed(self) -> dict[str, str]:
        """The fields as a form sends them to act on what is shown: times ago have become moments."""
        moments = {"since": self.since, "until": self.until}
        return {**self.written, **{name: moment.isoformat() for name, moment in moments.items() if moment}}


async def asked(visit: Visit, now: datetime) -> MessageFilter:
    """The filter that a page was asked for. Raises `BadInput`, and `Denied` if the person may not look into payloads.

    What is found tells what is in them, so whoever searches in payloads is put on record; not each time that the page
    keeps itself up to date.
    """
    wanted = MessageFilter.read(visit.params, now)
    if "payload" in wanted.texts:
        visit.need_payloads()
        if not visit.refreshes:
            await visit.database.write(
                lambda admin: admin.record_view(None, actor=visit.access.name, what="a search in payloads")
            )
    return wanted


def of_group(wanted: Filter) -> MessageFilter:
    """The filter bar that shows the dead letters of one group."""
    texts = {name: str(value) for name in TEXTS if (value := getattr(wanted, name, None)) is not None}
    none = ",".join(name for name in EMPTY if texts.get(name) == "")
    written = {"state": State.DEAD.value, **texts, "fingerprint": escaped(texts.get("fingerprint", "")), "none": none}
    return MessageFilter(State.DEAD, texts, None, None, {name: value for name, value in written.items() if value})


def escaped(text: str) -> str:
    """A text on one line that a form sends as it is: browsers change line ends, and spaces at the ends are dropped."""
    inner = msgspec.json.encode(text).decode()[1:-1]
    return re.sub(r"^\s+|\s+$", lambda ends: "".join(f"\\u{ord(space):04x}" for space in ends[0]), inner)


def unescaped(text: str) -> str:
    """The text again. Raises `BadInput`."""
    try:
        found = msgspec.json.decode(f'"{text}"', type=str)
    except msgspec.DecodeError:
        found = "\x00"
    if UNSTORABLE.search(found):
        raise BadInput(f"fingerprint = {text!r} is not valid: use the links of the dead letters' groups")
    return found


def _empty(params: Params) -> dict[str, str]:
    """Fields that must be empty, and not just left open."""
    names = [name for name in (params.text("none") or "").split(",") if name]
    for name in names:
        if name not in EMPTY or params.text(name):
            raise BadInput(f"none = {name!r} is not valid: use {', '.join(EMPTY)}, of those that are not given")
    return dict.fromkeys(names, "")


def searched(line: str) -> dict[str, str] | UUID:
    """What a line in the search box means: fields such as ``topic:orders state:dead``, or a message's id.

    Words without a field are text of an error. Raises `BadInput`.
    """
    # Only double quotes are special: an apostrophe in "can't" and the backslash of a path stand for themselves.
    parts = shlex.shlex(line, posix=True, punctuation_chars=False)
    parts.whitespace_split, parts.quotes, parts.escape, parts.commenters = True, '"', "", ""
    try:
        words = list(parts)
    except ValueError:
        raise BadInput(f"q = {line!r} has a quotation mark without its partner: close it") from None
    found: dict[str, str] = {}
    loose: list[str] = []
    for word in words:
        name, colon, value = word.partition(":")
        if colon and name in FIELDS:
            found[name] = value
        elif colon and name == "id":
            return Params({"id": value}).uuid("id")
        else:
            loose.append(word)
    if len(words) == 1 and loose:
        try:
            return UUID(loose[0])
        except ValueError:
            pass
    if loose:
        found["error"] = " ".join([*filter(None, [found.get("error")]), *loose])
    return found


def read_as_of(params: Params) -> datetime:
    """When the page was made that a form belongs to. Raises `BadInput`."""
    value = params.needed("as_of")
    try:
        return utc_moment(value)
    except (ValueError, OverflowError):
        raise BadInput(f"as_of = {value!r} is not a time: load the page again") from None
