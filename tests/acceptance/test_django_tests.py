"""Django's own tests with the idempotency middleware: they leave no trace, neither in their database nor in another."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from tests.acceptance.service import Service
from tests.contract.connection_kinds import DJANGO_ENGINES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import FreshDatabase

SETTINGS = """
DATABASES = {databases}
DATABASES["ledger"] = {{**DATABASES["default"], "NAME": DATABASES["default"]["NAME"] + "_ledger"}}
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
SECRET_KEY = "x"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
MIDDLEWARE = ["postroom.web.django.IdempotencyMiddleware"]
POSTROOM_IDEMPOTENCY = {{"required": ["/bills"]}}
{setup}
"""
MODELS = """
from django.db import models

class Bill(models.Model):
    cents = models.IntegerField()
"""
MIGRATION = """
from django.db import migrations, models
from postroom.web.django import create_tables

class Migration(migrations.Migration):
    operations = [
        migrations.CreateModel(
            "Bill", [("id", models.BigAutoField(primary_key=True)), ("cents", models.IntegerField())]
        ),
        migrations.RunPython(create_tables, migrations.RunPython.noop),
        migrations.RunPython(create_tables, migrations.RunPython.noop),
    ]
"""
URLS = """
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connections, transaction
from django.http import JsonResponse
from django.urls import path
from shop.models import Bill
from postroom import Outbox

USING = settings.POSTROOM_IDEMPOTENCY.get("using", "default")

def bills(request):
    bill = Bill.objects.using(USING).create(cents=5)
    if request.GET.get("fails"):
        raise RuntimeError("not today")
    if request.GET.get("later"):
        with transaction.atomic(using=USING):
            keyed = request.META["postroom.idempotency"]
            Outbox().add(connections[USING], "bills", {"bill": bill.id}, ledger=keyed.entry)
    return JsonResponse({"bills": Bill.objects.using(USING).count()}, status=201)

@transaction.non_atomic_requests(using="default")  # with which Django takes no async view
async def async_bills(request):
    return await sync_to_async(bills)(request)

urlpatterns = [path("bills", bills), path("async-bills", async_bills)]
"""
TESTS = """
from django.conf import settings
from django.db import connections
from django.test import TestCase, TransactionTestCase
from shop.models import Bill

USING = settings.POSTROOM_IDEMPOTENCY.get("using", "default")

def ledger():
    name = "postroom.idempotency" if connections[USING].vendor == "postgresql" else "postroom_idempotency"
    with connections[USING].cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {name}")
        return cursor.fetchone()[0]

class Keyed:
    databases = {USING, "default"}
    key = "7f9c"

    def post(self, url="/bills"):
        return self.client.post(url, headers={"idempotency-key": self.key, "authorization": "a"})

    def check(self, url):
        before = ledger()
        first, again = self.post(url), self.post(url)
        assert (first.status_code, again.status_code) == (201, 201), (first, again)
        assert again["idempotent-replayed"] == "true"
        assert first.json() == again.json() == {"bills": 1}
        assert (Bill.objects.using(USING).count(), ledger()) == (1, before + 1)
        assert self.client.post("/bills").status_code == 400

class InATransaction(Keyed, TestCase):
    def test_once(self):
        assert ledger() == 0
        self.check("/bills")

    def test_twice_with_the_same_key(self):
        assert ledger() == 0
        self.check("/async-bills")

    def test_a_message(self):
        self.check("/bills?later=1")

    def test_a_failure_leaves_the_transaction_usable(self):
        self.client.raise_request_exception = False
        assert self.post("/bills?fails=1").status_code == 500
        assert self.post("/bills?fails=1").status_code == 500
        assert ledger() == 1

    async def test_async(self):
        for _ in range(2):
            headers = {"idempotency-key": self.key, "authorization": "a"}
            answer = await self.async_client.post("/async-bills", headers=headers)
            assert (answer.status_code, answer.json()) == (201, {"bills": 1})

class WithCommits(Keyed, TransactionTestCase):
    key = "of its own"

    def test_once(self):
        self.check("/bills")
"""


@pytest.mark.parametrize(
    ("kind", "setup"),
    [
        ("sqlite", ""),
        ("sqlite", 'POSTROOM_IDEMPOTENCY["using"] = "ledger"'),
        ("postgresql", 'DATABASES["default"]["ATOMIC_REQUESTS"] = True'),
        ("mariadb", ""),
    ],
    ids=["sqlite", "another alias", "postgresql, atomic", "mariadb"],
)
def test_the_ledger_of_a_test_is_that_of_its_database(
    kind: str, setup: str, ready_database: FreshDatabase, tmp_path: Path
) -> None:
    with closing(Service(ready_database(kind))) as service:
        url = service.engine.url
        described = {
            "ENGINE": f"django.db.backends.{DJANGO_ENGINES[url.get_backend_name()]}",
            "NAME": url.database,
            "HOST": url.host or "",
            "PORT": str(url.port or ""),
            "USER": url.username or "",
        }
        driver = "import pymysql\npymysql.version_info = (2, 2, 1, 'final', 0)\npymysql.install_as_MySQLdb()\n"
        files = {
            "project.py": (driver if kind == "mariadb" else "")
            + SETTINGS.format(databases={"default": described}, setup=setup),
            "shop/__init__.py": "",
            "shop/models.py": MODELS,
            "shop/urls.py": URLS,
            "shop/tests.py": TESTS,
            "shop/migrations/__init__.py": "",
            "shop/migrations/0001_initial.py": MIGRATION,
        }
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content, encoding="utf-8")
        ran = subprocess.run(
            [sys.executable, "-m", "django", "test", "--noinput", "--settings=project", "--pythonpath=."],
            cwd=tmp_path,
            env={**os.environ, "POSTROOM_DATABASE": service.url, "PYTHONWARNINGS": "default"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert "Ran 6 tests" in ran.stderr
        with service.engine.begin() as connection:
            assert connection.scalar(text(f"SELECT count(*) FROM {service.table('idempotency')}")) == 0
