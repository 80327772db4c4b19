"""The options of the idempotency middleware in Django that cannot be."""

from __future__ import annotations

from typing import Any

import django
import pytest
from django.conf import settings
from django.db import connections

from postroom.errors import InvalidSetting
from postroom.web.django import core_of


@pytest.fixture(autouse=True)
def _databases() -> None:
    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    for alias, engine in (("unused", "sqlite3"), ("dummy", "dummy")):
        described = {"ENGINE": f"django.db.backends.{engine}", "NAME": "never-opened.db"}
        connections.settings |= {alias: connections.configure_settings({"default": described})["default"]}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"using": "shop"}, "using = 'shop' is not one of Django's DATABASES: there are .*unused"),
        ({"using": "dummy"}, "using = 'dummy' is a database of unknown: use PostgreSQL"),
        ({"using": "unused", "database": "sqlite:///app.db"}, "the option database is not for Django.*as using"),
        ({"using": "unused", "requierd": []}, "did you mean required"),
        (None, "POSTROOM_IDEMPOTENCY is of the type NoneType"),
    ],
)
def test_options_that_cannot_be_are_refused(given: Any, told: str) -> None:
    with pytest.raises(InvalidSetting, match=told):
        core_of(given)


def test_no_url_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTROOM_DATABASE", raising=False)
    _, used = core_of({"using": "unused"})
    assert used.alias == "unused"
