"""Turn an entry of Django's ``DATABASES`` into the URL that relays and consumers connect with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from postroom.errors import InvalidSetting

_OF_DJANGO = {
    "postgresql": {"pool", "isolation_level", "server_side_binding", "cursor_factory", "prepare_threshold"},
    "mysql": {"isolation_level", "charset", "use_unicode", "conv", "cursorclass", "autocommit", "client_flag"},
}
"""Options that concern only Django's own connections."""
_PASSED = {
    "mysql": {"connect_timeout", "init_command", "read_default_file", "read_default_group", "sql_mode", "unix_socket"}
}
"""Options that drivers of MySQL have in common. PostgreSQL's are those of libpq, whatever they are."""
_SSL = {"ca", "cert", "key", "capath", "cipher"}
_OTHERWISE = "give the commands a URL with --database"


def database_url(alias: str, vendor: str, described: Mapping[str, Any]) -> str:
    """The URL of ``DATABASES[alias]``, with the password. Raises `InvalidSetting`, without a value of the options."""
    match vendor:
        case "postgresql":
            return _postgresql(alias, described)
        case "mysql":
            return _mysql(alias, described)
        case "sqlite":
            return _sqlite(str(described["NAME"]))
        case _:
            found = "has no ENGINE" if vendor == "unknown" else f"is a database of {vendor}"  # Django's dummy backend
            raise InvalidSetting(
                f"DATABASES[{alias!r}] {found}: use PostgreSQL, MySQL/MariaDB or SQLite for "
                'Postroom, in an alias of its own, and name that in POSTROOM = {"DATABASE": …}'
            )


def _postgresql(alias: str, described: Mapping[str, Any]) -> str:
    options = _options(alias, "postgresql", described)
    role = options.pop("assume_role", None)
    if role:
        options["options"] = f"{options.get('options', '')} -c role={role}".strip()
    # asyncpg does not know libpq's options, psycopg does.
    scheme = "postgresql+psycopg" if options else "postgresql"
    host, query = str(described.get("HOST") or ""), {name: str(value) for name, value in options.items()}
    if "/" in host or "," in host:  # a directory of sockets, or several servers
        return _url(scheme, {**described, "HOST": ""}, {**query, "host": host})
    return _url(scheme, described, query)


def _mysql(alias: str, described: Mapping[str, Any]) -> str:
    options = _options(alias, "mysql", described)
    ssl = options.pop("ssl", None) or {}
    refused = sorted({*options} - _PASSED["mysql"])
    if refused or not isinstance(ssl, Mapping) or not ssl.keys() <= _SSL:
        which = refused[0] if refused else "ssl"
        raise InvalidSetting(f"OPTIONS[{which!r}] of DATABASES[{alias!r}] has no place in a URL: {_OTHERWISE}")
    query = {name: str(value) for name, value in options.items()} | {f"ssl_{name}": ssl[name] for name in ssl}
    host = str(described.get("HOST") or "")
    if host.startswith("/"):
        return _url("mysql", {**described, "HOST": ""}, {**query, "unix_socket": host})
    return _url("mysql", described, query)


def _sqlite(name: str) -> str:
    if not name.startswith("file:"):
        return f"sqlite:///{quote(name)}"
    separator = "&" if "?" in name else "?"
    return f"sqlite:///{name}{separator}uri=true"


def _options(alias: str, vendor: str, described: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not for Django alone, and have a value. Raises for one that no URL can hold."""
    given: Mapping[str, Any] = described.get("OPTIONS") or {}
    options = {name: value for name, value in given.items() if name not in _OF_DJANGO[vendor] and value is not None}
    for name, value in options.items():
        if not isinstance(value, str | int | float) and (vendor, name) != ("mysql", "ssl"):
            raise InvalidSetting(f"OPTIONS[{name!r}] of DATABASES[{alias!r}] has no place in a URL: {_OTHERWISE}")
    return options


def _url(scheme: str, described: Mapping[str, Any], query: Mapping[str, str]) -> str:
    user, password, host, port = (
        quote(str(described.get(name) or ""), safe="") for name in ("USER", "PASSWORD", "HOST", "PORT")
    )
    if ":" in str(described.get("HOST") or ""):
        host = f"[{described['HOST']}]"  # an address of IPv6
    who = f"{user}{':' if password else ''}{password}@" if user or password else ""
    place = f"{host}{':' if port else ''}{port}"
    options = f"?{urlencode(query)}" if query else ""
    return f"{scheme}://{who}{place}/{quote(str(described.get('NAME') or ''), safe='')}{options}"
