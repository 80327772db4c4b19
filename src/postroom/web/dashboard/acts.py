"""What a person wants done, read from a form: to which messages or sagas, as they were shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from postroom.admin import Admin, Filter, SagaFilter, SagaState, State
from postroom.web.dashboard.message_filter import FIELDS, LABELS, UNSENT, MessageFilter, asked, read_as_of
from postroom.web.dashboard.params import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from postroom.web.dashboard.visit import Visit

    Scope = Literal["selection", "filter"]
    Progress = Callable[[int], None]

MESSAGE_ACTS = {"requeue": "Requeue", "discard": "Discard", "cancel": "Cancel"}
SAGA_ACTS = {"resume": "Resume", "skip": "Skip the failing step of", "abort": "Abort"}
DONE = {
    "requeue": "requeued",
    "discard": "discarded",
    "cancel": "cancelled",
    "resume": "resumed",
    "skip": "skipped",
    "abort": "aborted",
}
MEANINGS = {
    "requeue": "They are sent after all: attempts start again, and each goes before what it held back on its key.",
    "discard": "They are removed for good. The audit log keeps what they were, without the payload.",
    "cancel": "They are removed for good, unless they are being sent. What waits behind them on their keys goes on.",
    "resume": "They go on where they stopped, at once, with all attempts before them.",
    "skip": "The step that fails is put on record as skipped, and is not undone later. Do it by hand first.",
    "abort": "They go back: what was done is compensated. A step that runs now cannot commit.",
}
DESTRUCTIVE = ("discard", "cancel", "abort", "skip")
MOST_SHOWN = 1000
"""Results that a page lists one by one."""


@dataclass(frozen=True, slots=True)
class Counted:
    """How many an act would look at."""

    total: int
    older_than_inbox: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """What an act did, and to which."""

    action: str
    count: int
    done: tuple[dict[str, str], ...]
    """Each with a text and a link; at most `MOST_SHOWN`."""
    refused: tuple[dict[str, str], ...]
    refused_count: int


@dataclass(frozen=True, slots=True)
class MessageAct:
    """Requeue, discard or cancel."""

    action: str
    scope: Scope
    which: Filter
    bar: MessageFilter
    as_of: datetime
    noun: str

    def count(self, admin: Admin) -> Counted:
        """How many, and of those to requeue, how many are older than what inboxes remember."""
        counting = admin.count_unsent if self.action == "cancel" else admin.count_dead_letters
        found = counting(self.which)
        return Counted(found.total, found.older_than_inbox if self.action == "requeue" else 0)

    def run(self, admin: Admin, actor: str, reason: str, progress: Progress) -> Result:
        """Do it."""
        acting = {"requeue": admin.requeue, "discard": admin.discard, "cancel": admin.cancel}[self.action]
        done = acting(self.which, actor=actor, reason=reason, progress=progress)
        gone = self.action != "requeue"
        return Result(
            self.action,
            done.count,
            tuple(
                {"text": str(one), "link": "" if gone else f"message?id={one}", "why": DONE[self.action]}
                for one in done.ids[:MOST_SHOWN]
            ),
            tuple(
                {"text": str(one.id), "link": f"message?id={one.id}", "why": one.status.value}
                for one in done.refused[:MOST_SHOWN]
            ),
            len(done.refused),
        )

    def fields(self) -> list[tuple[str, str]]:
        """What a form must send to mean the same."""
        if self.scope == "selection":
            chosen = [("id", str(one)) for one in self.which.ids or ()]
        else:
            chosen = list(self.bar.fixed().items())
        return [("do", f"{self.action} {self.scope}"), ("as_of", self.as_of.isoformat()), *chosen]

    def described(self) -> list[tuple[str, str]]:
        """The filter in words."""
        return (
            []
            if self.scope == "selection"
            else [(LABELS[name], self.bar.written[name]) for name in FIELDS if name in self.bar.written]
        )

    def back(self) -> str:
        """The list that it was chosen from."""
        return f"messages?{self.bar.query}"


@dataclass(frozen=True, slots=True)
class SagaAct:
    """Resume, skip or abort."""

    action: str
    scope: Scope
    whiches: Sequence[SagaFilter]
    as_of: datetime
    step: str | None
    chosen: list[tuple[str, str]]
    """The fields that chose them."""
    noun: str = "saga"

    def count(self, admin: Admin) -> Counted:
        """How many match; what cannot be done to some of them is told afterwards."""
        return Counted(sum(admin.count_sagas(which).total for which in self._narrowed()))

    def run(self, admin: Admin, actor: str, reason: str, progress: Progress) -> Result:
        """Do it."""
        options: dict[str, Any] = {"actor": actor, "reason": reason, "progress": progress}
        if self.action == "skip":
            options["step"] = self.step
        acting = {"resume": admin.resume_sagas, "skip": admin.skip_saga_steps, "abort": admin.abort_sagas}
        results = [acting[self.action](which, **options) for which in self._narrowed()]
        done = [one for result in results for one in result.sagas]
        refused = [one for result in results for one in result.refused]
        return Result(
            self.action,
            len(done),
            tuple(_saga(one.name, one.id, DONE[self.action]) for one in done[:MOST_SHOWN]),
            tuple(_saga(one.name, one.id, one.reason) for one in refused[:MOST_SHOWN]),
            len(refused),
        )

    def fields(self) -> list[tuple[str, str]]:
        """What a form must send to mean the same."""
        return [("do", f"{self.action} {self.scope}"), ("as_of", self.as_of.isoformat()), *self.chosen]

    def described(self) -> list[tuple[str, str]]:
        """The filter in words."""
        return [] if self.scope == "selection" else [(name.capitalize(), value) for name, value in self.chosen if value]

    def back(self) -> str:
        """The list that it was chosen from."""
        return "sagas"

    def _narrowed(self) -> list[SagaFilter]:
        """Of a whole filter, those that the act applies to: the rest would only be refused."""
        if self.scope == "selection":
            return list(self.whiches)
        states: dict[str, list[SagaState]] = {
            "resume": [SagaState.PARKED],
            "skip": [SagaState.PARKED, SagaState.STRANDED],
            "abort": [state for state in SagaState if state not in (SagaState.COMPLETED, SagaState.COMPENSATED)],
        }
        return [which.only(states[self.action]) for which in self.whiches]


async def read_act(visit: Visit) -> MessageAct | SagaAct:
    """The act that a form asks for. Raises `BadInput`, or `Denied`."""
    action, _, scope = visit.params.needed("do").partition(" ")
    if scope not in ("selection", "filter"):
        raise BadInput(f"do = {visit.params.text('do')!r} is not valid: use the buttons of a list")
    as_of = read_as_of(visit.params)
    if action in MESSAGE_ACTS:
        return await _message_act(visit, action, scope, as_of)
    if action in SAGA_ACTS:
        return _saga_act(visit, action, scope, as_of)
    raise BadInput(f"do = {action!r} is not valid: use {', '.join([*MESSAGE_ACTS, *SAGA_ACTS])}")


async def _message_act(visit: Visit, action: str, scope: Any, as_of: datetime) -> MessageAct:
    bar = await asked(visit, as_of)
    which = bar.selection(as_of)
    noun = "unsent message" if action == "cancel" else "dead letter"
    if scope == "selection":
        which = Filter(ids=_chosen(visit), as_of=as_of)
    elif bar.state not in (None, *(UNSENT if action == "cancel" else (State.DEAD,))):
        raise BadInput(f"state = {bar.state!r} is not valid here: {action} is for {noun}s")
    elif bar.state in UNSENT:
        noun = f"{bar.state} message"
    return MessageAct(action, scope, which, bar, as_of, noun)


def _saga_act(visit: Visit, action: str, scope: Any, as_of: datetime) -> SagaAct:
    step = visit.params.text("step", 255)
    if scope == "selection":
        by_name: dict[str, list[str]] = {}
        chosen = _chosen(visit)
        for name, identifier in map(_saga_ref, chosen):
            by_name.setdefault(name, []).append(identifier)
        whiches = [SagaFilter(name, ids=ids, as_of=as_of) for name, ids in by_name.items()]
        return SagaAct(action, scope, whiches, as_of, step, [("id", one) for one in chosen])
    of, code = visit.params.text("name", 255), visit.params.text("code", 255)
    state = visit.params.choice("state", SagaState)
    which = SagaFilter(of, states=[state] if state else None, code=code, as_of=as_of)
    fields = {"name": of, "state": state.value if state else None, "code": code}
    return SagaAct(action, scope, [which], as_of, step, [(key, value) for key, value in fields.items() if value])


def _chosen(visit: Visit) -> list[str]:
    chosen = list(dict.fromkeys(filter(None, visit.form.get("id", []))))
    if not chosen:
        raise BadInput("nothing is selected: go back, and tick what you mean")
    return chosen


def saga_ref(name: str, identifier: str) -> str:
    """A saga as a form's value."""
    return msgspec.json.encode([name, identifier]).decode()


def _saga_ref(text: str) -> tuple[str, str]:
    try:
        name, identifier = msgspec.json.decode(text, type=tuple[str, str])
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise BadInput(f"id = {text!r} is not a saga: tick those of the list") from None
    if "\x00" in text or "\\u0000" in text:
        raise BadInput(f"id = {text!r} contains a control character: tick those of the list")
    return name, identifier


def _saga(name: str, identifier: str, why: str) -> dict[str, str]:
    from urllib.parse import urlencode

    return {
        "text": f"{name} {identifier}",
        "link": f"saga?{urlencode({'name': name, 'id': identifier})}",
        "why": why,
    }
