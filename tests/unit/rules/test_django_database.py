"""Entries of Django's DATABASES as URLs."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import make_url

from postroom.errors import InvalidSetting
from postroom.rules.django_database import database_url

SERVER: dict[str, Any] = {"NAME": "shop/ü", "USER": "ada@x", "PASSWORD": "p:/@#% ?", "HOST": "db", "PORT": 5433}


def test_a_server_with_any_characters() -> None:
    url = make_url(database_url("default", "postgresql", SERVER))
    found = (url.drivername, url.username, url.password, url.host, url.port, url.database)
    assert found == ("postgresql", "ada@x", "p:/@#% ?", "db", 5433, "shop/ü")
    assert make_url(database_url("default", "mysql", SERVER)).password == SERVER["PASSWORD"]


@pytest.mark.parametrize(
    ("vendor", "described", "url"),
    [
        ("postgresql", {"NAME": "shop", "HOST": "", "PORT": ""}, "postgresql:///shop"),
        ("postgresql", {"NAME": "shop", "USER": "ada", "HOST": "::1"}, "postgresql://ada@[::1]/shop"),
        ("postgresql", {"NAME": "shop", "HOST": "/run/pg"}, "postgresql:///shop?host=%2Frun%2Fpg"),
        ("postgresql", {"NAME": "shop", "HOST": "a,b"}, "postgresql:///shop?host=a%2Cb"),
        (
            "postgresql",
            {"NAME": "shop", "OPTIONS": {"sslmode": "require", "pool": True, "isolation_level": 2, "sslcert": None}},
            "postgresql+psycopg:///shop?sslmode=require",
        ),
        (
            "postgresql",
            {"NAME": "shop", "OPTIONS": {"assume_role": "app", "options": "-c a=b"}},
            "postgresql+psycopg:///shop?options=-c+a%3Db+-c+role%3Dapp",
        ),
        ("postgresql", {"NAME": "", "OPTIONS": {"service": "shop"}}, "postgresql+psycopg:///?service=shop"),
        ("mysql", {"NAME": "shop", "HOST": "/run/my.sock"}, "mysql:///shop?unix_socket=%2Frun%2Fmy.sock"),
        (
            "mysql",
            {
                "NAME": "shop",
                "HOST": "db",
                "OPTIONS": {"charset": "utf8mb4", "ssl": {"ca": "/ca"}, "connect_timeout": 3},
            },
            "mysql://db/shop?connect_timeout=3&ssl_ca=%2Fca",
        ),
        ("sqlite", {"NAME": "/data/my shop.db"}, "sqlite:////data/my%20shop.db"),
        ("sqlite", {"NAME": "file:m?mode=memory"}, "sqlite:///file:m?mode=memory&uri=true"),
        ("sqlite", {"NAME": "file:m"}, "sqlite:///file:m?uri=true"),
    ],
)
def test_what_becomes_of_an_entry(vendor: str, described: dict[str, Any], url: str) -> None:
    assert database_url("default", vendor, described) == url


@pytest.mark.parametrize(
    ("vendor", "options", "said"),
    [
        ("oracle", {}, "is a database of oracle: use PostgreSQL"),
        ("unknown", {}, "has no ENGINE: use PostgreSQL"),
        ("postgresql", {"context": object()}, r"OPTIONS\['context'\] of DATABASES\['bank'\] has no place in a URL"),
        ("mysql", {"ssl_mode": "REQUIRED"}, r"OPTIONS\['ssl_mode'\]"),
        ("mysql", {"ssl": {"check_hostname": True}}, r"OPTIONS\['ssl'\]"),
        ("mysql", {"ssl": "yes"}, r"OPTIONS\['ssl'\]"),
    ],
)
def test_what_no_url_can_hold_is_refused_without_the_password(vendor: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSetting, match=said) as refused:
        database_url("bank", vendor, {**SERVER, "OPTIONS": options})
    assert SERVER["PASSWORD"] not in str(refused.value)
