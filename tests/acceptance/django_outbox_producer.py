"""A Django project with django-outbox-pattern: makes its tables, and publishes what standard input says, as JSON."""

from __future__ import annotations

import json
import sys
from datetime import timedelta

import django
import pymysql
from django.conf import settings
from django.core.management import call_command
from django.utils import timezone
from sqlalchemy import make_url

from postroom.store.connections.urls import resolve

ENGINES = {"sqlite": "sqlite3", "postgresql": "postgresql", "mysql": "mysql"}


def main(address: str) -> None:
    url = make_url(resolve(address))
    pymysql.version_info = (2, 2, 1, "final", 0)  # what Django expects of its usual driver
    pymysql.install_as_MySQLdb()
    described = {
        "ENGINE": f"django.db.backends.{ENGINES[url.get_backend_name()]}",
        "NAME": url.database,
        "HOST": url.host or "",
        "PORT": str(url.port or ""),
        "USER": url.username or "",
    }
    settings.configure(
        DATABASES={"default": described},
        INSTALLED_APPS=["django_outbox_pattern"],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
    )
    django.setup()
    call_command("migrate", verbosity=0)
    from django_outbox_pattern.models import Published

    for fields in json.load(sys.stdin):
        hours = fields.pop("hours", 24)
        made = Published(**fields, expires_at=timezone.now() + timedelta(hours=hours))
        made.save()
        sys.stdout.write(f"{made.id}\n")


if __name__ == "__main__":
    main(sys.argv[1])
