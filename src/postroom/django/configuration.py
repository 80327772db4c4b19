"""Django's settings for Postroom: the dict ``POSTROOM``, and the database that it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.conf import settings
from django.db import connections
from django.utils.module_loading import import_string

from postroom.errors import InvalidSetting
from postroom.rules.django_database import database_url
from postroom.settings import Settings, provide
from postroom.store.sql.names import Names

SOURCE = "POSTROOM in Django's settings"
_OWN = {"DATABASE", "MASK", "LOCK_KEYS"}
"""Keys that are not settings of Postroom's own, or mean something else there."""


def alias() -> str:
    """The alias of the database that has the tables. Raises `InvalidSetting`."""
    found = _given().get("DATABASE", "default")
    if "://" in str(found):  # which may hold a password
        raise InvalidSetting(
            f"{SOURCE}: DATABASE is an alias in DATABASES, not a URL: describe the database there, and give its alias "
            f"(there are {', '.join(connections)})"
        )
    if found not in list(connections):
        raise InvalidSetting(f"{SOURCE}: DATABASE = {found!r} is none of DATABASES: there are {', '.join(connections)}")
    return str(found)


def names() -> Names:
    """Where the tables are."""
    in_force = Settings.load()
    return Names.of(connections[alias()].vendor, in_force.schema, in_force.table_prefix)


def mask() -> Callable[[str, Any], Any] | None:
    """The function that removes from payloads what must not be stored. Raises `InvalidSetting`."""
    given = _given().get("MASK")
    try:
        found = import_string(given) if isinstance(given, str) else given
    except ImportError as error:
        raise InvalidSetting(f"{SOURCE}: MASK = {given!r} cannot be loaded: {error}") from error
    if found is not None and not callable(found):
        raise InvalidSetting(f"{SOURCE}: MASK = {given!r} is no function: give one, or its dotted name")
    return found


def lock_keys() -> bool:
    """Whether `add` waits for other transactions with the same key. Raises `InvalidSetting`."""
    given = _given().get("LOCK_KEYS", False)
    if not isinstance(given, bool):
        raise InvalidSetting(f"{SOURCE}: LOCK_KEYS = {given!r} is not valid: use True or False")
    return given


def settings_in_django() -> Mapping[str, Any]:
    """The settings that `POSTROOM` gives, and the URL of its database. Raises `InvalidSetting`."""
    given = _given()
    wrong = [key for key in given if not str(key).isupper()]
    if wrong:
        raise InvalidSetting(f"{SOURCE}: write {wrong[0]!r} in capitals, as all of Django's settings")
    database = connections[alias()]
    url = database_url(database.alias, database.vendor, database.settings_dict)
    return {name.lower(): value for name, value in given.items() if name not in _OWN} | {"database": url}


def use_in_this_process() -> None:
    """Let everything of Postroom's in this process take its settings from Django's."""
    provide(SOURCE, settings_in_django)


def _given() -> Mapping[str, Any]:
    given = getattr(settings, "POSTROOM", {})
    if not isinstance(given, Mapping):
        raise InvalidSetting(f"{SOURCE} is of the type {type(given).__name__}: give a dict")
    return given
