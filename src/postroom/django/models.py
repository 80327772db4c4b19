"""Models for the admin: they name what it shows and who may do what. They hold no rows.

Messages are read with `postroom.admin.Admin`, which finds its way through tables of any size.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models


class _NoRows(models.Manager):
    """Finds nothing: what goes over all models, such as ``dumpdata``, passes these by."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class Message(models.Model):
    """A message of the outbox."""

    id = models.UUIDField(primary_key=True)
    objects = _NoRows()

    class Meta:
        managed = False
        db_table = "postroom_message"
        base_manager_name = "objects"
        verbose_name = "message"
        verbose_name_plural = "messages"
        default_permissions = ("view",)
        permissions: ClassVar = [("view_message_payload", "Can view the payload of messages")]

    def __str__(self) -> str:
        return str(self.id)


class DeadLetter(models.Model):
    """A message that no relay tries to send any more."""

    id = models.UUIDField(primary_key=True)
    objects = _NoRows()

    class Meta:
        managed = False
        db_table = "postroom_dead_letter"
        base_manager_name = "objects"
        verbose_name = "dead letter"
        verbose_name_plural = "dead letters"
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("requeue_deadletter", "Can requeue dead letters"),
            ("discard_deadletter", "Can discard dead letters"),
        ]

    def __str__(self) -> str:
        return str(self.id)
