"""The application, as Django sees it."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.checks import Error, register
from django.core.signals import setting_changed
from django.db.models.signals import post_migrate

from postroom.errors import PostroomError


class PostroomConfig(AppConfig):
    """``INSTALLED_APPS = ["postroom.django", ...]``."""

    name = "postroom.django"
    label = "postroom"
    verbose_name = "Postroom"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Give Django's settings to Postroom, and have `manage.py check` look at them."""
        from postroom.django.configuration import use_in_this_process
        from postroom.django.current_outbox import forget_settings
        from postroom.django.operations import create_without_migrations
        from postroom.django.test_databases import empty_after_flush

        use_in_this_process()
        register(check_settings)
        setting_changed.connect(forget_settings, dispatch_uid="postroom")
        post_migrate.connect(create_without_migrations, sender=self, dispatch_uid="postroom tables")
        post_migrate.connect(empty_after_flush, sender=self, dispatch_uid="postroom")


def check_settings(**_: Any) -> list[Error]:
    """Whether the settings can be used."""
    from postroom.django.current_outbox import new_outbox

    try:
        new_outbox()
    except PostroomError as error:
        return [Error(str(error), id="postroom.E001")]
    return []
