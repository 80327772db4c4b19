"""``@publishes``: publish an event whenever a model is saved or deleted, in the same transaction."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from django.db import router, transaction
from django.db.models import Model
from django.db.models.signals import class_prepared, post_delete, post_save

from postroom.django import configuration
from postroom.django.current_outbox import outbox
from postroom.errors import InvalidSetting
from postroom.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable

M = TypeVar("M", bound=type[Any])
On = Literal["created", "updated", "saved", "deleted"]
_CREATED: dict[str, tuple[bool, ...]] = {"created": (True,), "updated": (False,), "saved": (True, False)}


def publishes(make: Callable[[Any], object], *, on: On = "saved") -> Callable[[M], M]:
    """Class decorator: publish what ``make`` returns for an instance, in the transaction that saves or deletes it.

    ``make`` returns an object whose class is an `event`, a message made with `outbox.message`, or None to publish
    nothing. ``on`` is ``"created"``, ``"updated"``, ``"saved"`` (both) or ``"deleted"``. If publishing fails, nothing
    is saved. Subclasses and proxies of the model publish too. Repeat it for several events.

    It sees ``save``, ``create``, ``get_or_create``, ``update_or_create``, forms and the admin, and deletes of single
    objects, of querysets and by cascade. It cannot see ``bulk_create``, ``bulk_update``, ``QuerySet.update`` and SQL.
    Fixtures are loaded without it. Raises `InvalidSetting`.
    """
    if on not in {*_CREATED, "deleted"}:
        raise InvalidSetting(f'on = {on!r} is not valid: use "created", "updated", "saved" or "deleted"')
    if not callable(make):
        raise InvalidSetting(f"publishes takes a function that makes an event of an instance, not {make!r}")

    def decorate(model: M) -> M:
        if not issubclass(model, Model) or _is_abstract(model):
            raise InvalidSetting(f"{model!r} is no model with a table: decorate one with @publishes, no abstract one")
        if on != "deleted":
            _save_in_transaction(model)
        publication = _Publication(model, make, on)
        publication.connect(model)
        class_prepared.connect(publication.prepared, weak=False)
        return model

    return decorate


def _is_abstract(model: Any) -> bool:
    return bool(model._meta.abstract)  # noqa: SLF001 - Django documents it


class _Publication:
    """What is published of a model and its subclasses, and when."""

    def __init__(self, model: Any, make: Callable[[Any], object], on: On) -> None:
        self._model = model
        self._make = make
        self._on = on

    def connect(self, model: Any) -> None:
        """Listen to what happens to this model. Only to this one: a listener to all would slow down every delete."""
        if self._on == "deleted":
            post_delete.connect(self.deleted, sender=model, weak=False)
        else:
            post_save.connect(self.saved, sender=model, weak=False)

    def prepared(self, *, sender: Any, **_: Any) -> None:
        """A model was declared."""
        if sender is not self._model and issubclass(sender, self._model):
            self.connect(sender)

    def saved(self, *, instance: Any, created: bool, raw: bool, using: str, **_: Any) -> None:
        """An instance was saved; ``raw``: as a fixture has it."""
        if not raw and created in _CREATED[self._on]:
            _publish(self._make(instance), instance, using)

    def deleted(self, *, instance: Any, using: str, **_: Any) -> None:
        """An instance was deleted, in a transaction of Django's."""
        _publish(self._make(instance), instance, using)


def _save_in_transaction(model: Any) -> None:
    """Make saving a transaction: Django sends its signal after a plain INSERT has committed by itself."""
    if getattr(model.save_base, "is_in_transaction", False):
        return
    plain = model.save_base

    @wraps(plain)
    def save_base(self: Any, *given: Any, using: str | None = None, **named: Any) -> Any:
        using = using or router.db_for_write(type(self), instance=self)
        with transaction.atomic(using=using, savepoint=False):
            return plain(self, *given, using=using, **named)

    save_base.is_in_transaction = True  # type: ignore[attr-defined]  # a mark of ours
    model.save_base = save_base


def _publish(made: object, instance: Any, using: str) -> None:
    if made is None:
        return
    if using != configuration.alias():
        raise InvalidSetting(
            f"{type(instance).__name__} was saved in the database {using!r}, and Postroom's tables are in "
            f"{configuration.alias()!r}: one transaction cannot hold both; save it there, or have no @publishes on it"
        )
    if isinstance(made, Message):
        outbox.add_many([made])
    else:
        outbox.publish(made)
