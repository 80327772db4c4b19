"""Postroom's tables at version 7, and what Django's admin shows of them."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models

from postroom.django.operations import CreateTables


class Migration(migrations.Migration):
    """A database that has the tables already keeps them. Later versions add migrations with `UpgradeTables`."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar = [
        CreateTables(),
        migrations.CreateModel(
            name="Message",
            fields=[("id", models.UUIDField(primary_key=True, serialize=False))],
            options={
                "verbose_name": "message",
                "verbose_name_plural": "messages",
                "db_table": "postroom_message",
                "permissions": [("view_message_payload", "Can view the payload of messages")],
                "managed": False,
                "base_manager_name": "objects",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[("id", models.UUIDField(primary_key=True, serialize=False))],
            options={
                "verbose_name": "dead letter",
                "verbose_name_plural": "dead letters",
                "db_table": "postroom_dead_letter",
                "permissions": [
                    ("requeue_deadletter", "Can requeue dead letters"),
                    ("discard_deadletter", "Can discard dead letters"),
                ],
                "managed": False,
                "base_manager_name": "objects",
                "default_permissions": ("view",),
            },
        ),
    ]
