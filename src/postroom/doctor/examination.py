"""`examine`: run the checks, each within its time; what one of them raises becomes its finding."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Unpack

from postroom.doctor.answers import answer_within
from postroom.doctor.redaction import Redaction
from postroom.doctor.registry import CHECKS, Check
from postroom.doctor.results import Report, Result
from postroom.doctor.surroundings import NotChecked, Surroundings
from postroom.errors import (
    DatabaseUnreachable,
    DriverMissing,
    InvalidSetting,
    PrivilegeMissing,
    SchemaMissing,
)
from postroom.rules.checks.findings import Finding, fail, skip
from postroom.settings import Settings, SettingsOverrides
from postroom.store.schema.purposes import Purpose

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

LIMIT = 10.0
"""Seconds that a check may take."""


def examine(
    database: str | None = None,
    broker: str | None = None,
    *,
    brokers: Mapping[str, str] | None = None,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    purposes: Sequence[Purpose | str] = (Purpose.RELAY,),
    limit: float = LIMIT,
    **settings: Unpack[SettingsOverrides],
) -> Report:
    """Check the live system: tables, messages, settings, database and brokers. Changes nothing.

    All settings default to those in force: give it the relays' own. `only` and `skip` select checks by code;
    ``BROKER_*`` stands for all that begin so. `purposes` are what the database's user is for. `limit` is the time of
    each check in seconds.

    What is absent, or raises, is a result, and does not keep the other checks from running. Raises `InvalidSetting`
    if a setting or a code is wrong, and `UnsupportedDatabase`.
    """
    in_force = Settings.load(database=database, broker=broker, brokers=brokers, **settings)
    if in_force.database is None:
        raise InvalidSetting("no database is given: use --database URL or set POSTROOM_DATABASE")
    if not limit > 0:
        raise InvalidSetting(f"limit = {limit!r} is not valid: give seconds above 0")
    chosen = select(only, skip)
    at = Surroundings(in_force, [_purpose(one) for one in purposes], limit)
    at.names  # noqa: B018 - raises if the database or a name is wrong
    at.brokers()
    redaction = Redaction(filter(None, (in_force.database, in_force.broker, *in_force.brokers.values())))
    try:
        return Report(tuple(result for check in chosen for result in _run(check, at, redaction)))
    finally:
        at.close()


def select(only: Collection[str] = (), skip: Collection[str] = ()) -> list[Check]:
    """The checks with these codes, in their order. Raises `InvalidSetting` for an unknown code, or if none is left."""
    for code in (*only, *skip):
        if not any(_matches(check, [code]) for check in CHECKS):
            raise InvalidSetting(f"there is no check {code!r}: `postroom doctor --list` lists them")
    chosen = [check for check in CHECKS if (not only or _matches(check, only)) and not _matches(check, skip)]
    if not chosen:
        raise InvalidSetting("no check is left to run: --skip leaves out all that --only names")
    return chosen


def _matches(check: Check, codes: Iterable[str]) -> bool:
    return any(fnmatchcase(check.code, code.upper()) for code in codes)


def _purpose(given: Purpose | str) -> Purpose:
    try:
        return Purpose(given)
    except ValueError:
        raise InvalidSetting(f"purposes: {given!r} is not one of {', '.join(Purpose)}") from None


def _run(check: Check, at: Surroundings, redaction: Redaction) -> list[Result]:
    began = time.monotonic()
    try:
        found = answer_within(lambda: check.look(at), at.limit)
        findings = [found] if isinstance(found, Finding) else list(found)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other checks go on
        if isinstance(error, TimeoutError):
            at.give_up()
        findings = [_of_error(error, at.limit)]
    seconds = round(time.monotonic() - began, 3)
    return [
        Result(
            code=check.code,
            verdict=one.verdict,
            evidence=redaction.text(one.evidence),
            remedy=redaction.text(one.remedy),
            docs=check.docs,
            group=check.group,
            subject=redaction.text(one.subject),
            figures={name: redaction.value(value) for name, value in one.figures.items()},
            seconds=seconds,
        )
        for one in findings
    ]


def _of_error(error: Exception, limit: float) -> Finding:
    """What a check's error means."""
    from postroom.store.sql.db_errors import is_denied, is_missing_table, is_timeout, reason

    if isinstance(error, TimeoutError) or is_timeout(error):
        return fail(f"no answer within {limit:g} s", "find out what is slow, or give it longer: --timeout SECONDS")
    why: str | None = None
    if isinstance(error, NotChecked):
        why = str(error)
    elif isinstance(error, DatabaseUnreachable | DriverMissing):
        why = "the database cannot be reached: see DB_REACHABLE"
    elif isinstance(error, SchemaMissing) or is_missing_table(error):
        why = "a table is missing: see SCHEMA_VERSION and SCHEMA_TABLES"
    elif isinstance(error, PrivilegeMissing) or is_denied(error):
        why = f"the database's user may not look: {reason(error)}"
    if why is None:
        return fail(f"the check itself failed: {type(error).__name__}: {reason(error)}", "please report this")
    return skip(why)
