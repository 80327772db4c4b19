"""Guards: rows that the tables refuse, so that a mistake in plain SQL fails where it is made. No relay relies on them.

On MySQL they are check constraints; on SQLite triggers, which can be added to existing tables too. On PostgreSQL they
are triggers as well where every message passes: it reads a check constraint anew in each statement that inserts, which
took half of the time that the insert of a message did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import CheckConstraint

from postroom.rules.lifecycle import Stored
from postroom.rules.ordering import LANES, NO_LANE
from postroom.rules.saga_plan import Direction, SagaOutcome, StepOutcome
from postroom.rules.twophase_plan import Decision
from postroom.store.sql.dialect import EARLIEST, LATEST
from postroom.store.sql.states import in_state, is_no_state, is_state, ready

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from postroom.store.sql.names import Names

_TEXTS = ("topic", "content_type", "type", "aggregate_type", "aggregate_id", "ordering_key", "idempotency_key")
_IN_RANGE = f"{is_state()} AND lane BETWEEN {NO_LANE} AND {LANES - 1} AND size >= 0"
_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_DIRECTIONS = f"direction BETWEEN {min(Direction)} AND {max(Direction)}"
_OUTCOMES = f"outcome BETWEEN {min(SagaOutcome)} AND {max(SagaOutcome)}"
_STEP_OUTCOMES = f"outcome BETWEEN {min(StepOutcome)} AND {max(StepOutcome)}"
_DECISIONS = f"decision BETWEEN {min(Decision)} AND {max(Decision)}"
_NUMBERS = {
    "saga": {"saga_check": f"{_DIRECTIONS} AND {_OUTCOMES}"},
    "saga_step": {"saga_step_check": f"{_DIRECTIONS} AND {_STEP_OUTCOMES}"},
    "twophase": {"twophase_check": _DECISIONS},
}


def _between(moment: str) -> str:
    return f"{moment} >= '{EARLIEST}' AND {moment} < '{LATEST}'"


_CHECKS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "postgresql": _NUMBERS,
    "mysql": {
        "outbox": {
            # Not compared with '', which equals a space there.
            "outbox_texts_check": " AND ".join(f"char_length({name}) > 0" for name in _TEXTS),
            "outbox_headers_check": "headers IS NULL OR json_valid(headers) AND json_type(headers) = 'OBJECT'",
            "outbox_id_check": f"id REGEXP '^{_UUID}$'",
        },
        "outbox_delivery": {"outbox_delivery_check": _IN_RANGE},
        **_NUMBERS,
    },
    "sqlite": {},
}


def checks(names: Names, table: str) -> dict[str, str]:
    """A table's check constraints: their names and conditions."""
    return {names.bare(name): text for name, text in _CHECKS[names.dialect].get(table, {}).items()}


def constraints(names: Names, table: str) -> list[CheckConstraint]:
    """A table's check constraints for its MetaData."""
    return [CheckConstraint(text, name=name) for name, text in checks(names, table).items()]


def triggers(names: Names) -> list[str]:
    """The triggers of SQLite and PostgreSQL. Safe to run again at any time."""
    return _TRIGGERS[names.dialect](names)


def trigger_names(names: Names) -> set[str]:
    """The names of the triggers that guard the tables."""
    return {names.bare(f"{table}_check") for table in _GUARDED[names.dialect]}


def _on_postgresql(names: Names) -> list[str]:
    statements: list[str] = []
    for table, faults in _POSTGRESQL_FAULTS.items():
        function, trigger = names.table(f"{table}_check"), names.quoted(names.bare(f"{table}_check"))
        cases = "".join(f"\n        WHEN {fault} THEN '{text}'" for text, fault in faults.items())
        checking = (
            f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger\n"
            "LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $postroom$\n"
            f"DECLARE\n    problem text := CASE{cases}\n    END;\n"
            "BEGIN\n    IF problem IS NOT NULL THEN\n"
            "        RAISE EXCEPTION USING ERRCODE = 'check_violation', MESSAGE = 'postroom: ' || problem;\n"
            "    END IF;\n    RETURN NEW;\nEND\n$postroom$"
        )
        when = f"BEFORE INSERT ON {names.table(table)} FOR EACH ROW\nWHEN ({_DOUBTFUL[table]})"
        statements += [
            checking,
            f"DROP TRIGGER IF EXISTS {trigger} ON {names.table(table)}",
            f"CREATE TRIGGER {trigger} {when} EXECUTE FUNCTION {function}()",
        ]
    return statements


def _on_sqlite(names: Names) -> list[str]:
    statements: list[str] = []
    for table, faults in _FAULTS.items():
        trigger = names.table(f"{table}_check")
        cases = "".join(
            f"WHEN {fault}\n        THEN RAISE(ABORT, 'postroom: {text}')\n    " for text, fault in faults.items()
        )
        body = f"    SELECT CASE\n    {cases}END;\n"
        statements += [
            f"DROP TRIGGER IF EXISTS {trigger}",
            f"CREATE TRIGGER {trigger} BEFORE INSERT ON {names.table(table)} BEGIN\n{body}END",
        ]
    return statements


_DOUBTFUL = {
    "outbox": "NEW.digest IS NULL",  # what `Outbox` and the function `add` write has one, and is validated by them
    "outbox_delivery": f"NOT ({ready('NEW')} AND NEW.lane BETWEEN {NO_LANE} AND {LANES - 1} AND NEW.size > 0)",
}
"""The rows that PostgreSQL's triggers look at: short conditions, because they too are read anew in each statement."""

_POSTGRESQL_FAULTS: Mapping[str, Mapping[str, str]] = {
    "outbox": {
        **{f"{name} is empty": f"NEW.{name} = ''" for name in _TEXTS},
        "topic holds a control character": r"NEW.topic ~ '[\x01-\x1F\x7F]'",
        "headers are not a JSON object": "jsonb_typeof(NEW.headers) <> 'object'",
        # A filter of jsonpath looks into arrays unless it is strict.
        "headers are not a JSON object of strings": "(NEW.headers -> '') IS NOT NULL "
        """OR jsonb_path_exists(NEW.headers, 'strict $.* ? (@.type() <> "string")')""",
        "created_at is outside the years 1000 to 9998": f"NOT ({_between('NEW.created_at')})",
        "expires_at is outside the years 1000 to 9998": f"NOT ({_between('NEW.expires_at')})",
        "position is not a number above 0": "NEW.position <= 0",
    },
    "outbox_delivery": {
        "state is not 0 (to be sent) or 1 (later)": is_no_state("NEW"),
        "lane is not that of the key": f"NEW.lane NOT BETWEEN {NO_LANE} AND {LANES - 1}",
        "size is not a number of bytes": "NEW.size < 0",
        "due is outside the years 1000 to 9998": f"NEW.due <> '-infinity' AND NOT ({_between('NEW.due')})",
    },
}
"""What the triggers refuse on PostgreSQL: the error → its condition."""

FORMER_CHECKS = {
    "outbox": ("outbox_texts_check", "outbox_headers_check", "outbox_moments_check", "outbox_position_check"),
    "outbox_delivery": ("outbox_delivery_check",),
}
"""The check constraints in whose place PostgreSQL's triggers are, since version 7 of the tables."""

_HEX = "[0-9a-f]"
_GLOB = "-".join(_HEX * count for count in (8, 4, 4, 4, 12))
_MOMENT = "[0-9][0-9][0-9][0-9]-[0-1][0-9]-[0-3][0-9] [0-2][0-9]:[0-5][0-9]:[0-5][0-9]*"


def _is_no_text(name: str) -> str:
    return f"typeof(NEW.{name}) NOT IN ('text', 'null') OR NEW.{name} = '' OR length(NEW.{name}) > 255"


_FAULTS: Mapping[str, Mapping[str, str]] = {
    "outbox": {
        "id is not a UUID in lower case with hyphens": f"typeof(NEW.id) <> 'text' OR NEW.id NOT GLOB '{_GLOB}'",
        **{f"{name} is not a text of 1 to 255 characters": _is_no_text(name) for name in _TEXTS},
        "payload is neither bytes nor text": "typeof(NEW.payload) NOT IN ('blob', 'text', 'null')",
        "headers are not a JSON object of strings": "NEW.headers IS NOT NULL AND (typeof(NEW.headers) <> 'text' "
        "OR NOT json_valid(NEW.headers) OR json_type(NEW.headers) <> 'object' "
        "OR EXISTS (SELECT 1 FROM json_each(NEW.headers) h WHERE h.type <> 'text' OR h.key = ''))",
        "expires_at is not a moment like 2030-01-02 03:04:05.678": f"NEW.expires_at NOT GLOB '{_MOMENT}'",
        "created_at is not a moment like 2030-01-02 03:04:05.678": f"NEW.created_at NOT GLOB '{_MOMENT}'",
    },
    "outbox_delivery": {
        "state is not 0 (to be sent) or 1 (later)": f"typeof(NEW.state) <> 'integer' OR {is_no_state('NEW')}",
        "lane is not that of the key": "typeof(NEW.lane) <> 'integer' "
        f"OR NEW.lane NOT BETWEEN {NO_LANE} AND {LANES - 1}",
        "position is not a number above 0": "typeof(NEW.position) <> 'integer' OR NEW.position <= 0",
        "key_hash is not a number": "typeof(NEW.key_hash) NOT IN ('integer', 'null')",
        "size is not a number of bytes": "typeof(NEW.size) <> 'integer' OR NEW.size < 0",
        "attempts and claims are not numbers": "typeof(NEW.attempts) <> 'integer' OR typeof(NEW.claims) <> 'integer'",
        "due is not a moment like 2030-01-02 03:04:05.678": f"NEW.due <> '' AND NEW.due NOT GLOB '{_MOMENT}'",
    },
    "saga": {
        "direction is not 0 (forward) or 1 (back)": f"NOT (NEW.{_DIRECTIONS})",
        "outcome is not 0 (open), 1 (completed) or 2 (compensated)": f"NOT (NEW.{_OUTCOMES})",
    },
    "saga_step": {
        "direction is not 0 (forward) or 1 (back)": f"NOT (NEW.{_DIRECTIONS})",
        "outcome is not 1 (done), 2 (waiting), 3 (skipped) or 4 (failed)": f"NOT (NEW.{_STEP_OUTCOMES})",
    },
    "twophase": {"decision is not 0 (abort), 1 (commit) or 2 (open)": f"NOT (NEW.{_DECISIONS})"},
}
"""What the triggers refuse on SQLite, whose columns accept values of any type: the error → its condition."""


_TRIGGERS: Mapping[str, Callable[[Names], list[str]]] = {
    "postgresql": _on_postgresql,
    "mysql": lambda _: [],
    "sqlite": _on_sqlite,
}
_GUARDED: Mapping[str, Iterable[str]] = {"postgresql": _POSTGRESQL_FAULTS, "mysql": (), "sqlite": _FAULTS}


def repairs(names: Names) -> list[str]:
    """Statements that make older deliveries pass the guards: a claim writes their rows again."""
    table, lanes = names.table("outbox_delivery"), f"lane NOT BETWEEN {NO_LANE} AND {LANES - 1}"
    lane = f"coalesce(key_hash & {LANES - 1}, {NO_LANE})"
    statements = [
        f"UPDATE {table} SET size = 0 WHERE size < 0",
        f"UPDATE {table} SET lane = {lane} WHERE {lanes}",
        f"UPDATE {table} SET {in_state(Stored.DEAD)}, error_code = 'UNDECODABLE' WHERE {is_no_state()}",
    ]
    if names.dialect == "postgresql":
        statements += [
            f"UPDATE {table} SET due = '9998-12-31 00:00:00+00' WHERE due >= '{LATEST}'",
            f"UPDATE {table} SET due = '-infinity' WHERE due < '{EARLIEST}' AND due <> '-infinity'",
        ]
    if names.dialect == "sqlite":
        statements.append(f"UPDATE {table} SET size = 0 WHERE typeof(size) <> 'integer'")
    return statements
