"""Helpers for the tests of a Django project."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from postroom.django import configuration
from postroom.django.current_outbox import REPLACED, the_outbox
from postroom.django.test_databases import empty
from postroom.testing import RecordingOutbox

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["empty", "recorded"]


@contextmanager
def recorded(*, store: bool = True) -> Iterator[RecordingOutbox]:
    """Record what the code in the block publishes: ``messages``, ``assert_published`` and the like.

    The messages are written to the database, too, unless ``store`` is false.
    """
    recording = RecordingOutbox(the_outbox()) if store else RecordingOutbox(mask=configuration.mask())
    REPLACED.append(recording)
    try:
        yield recording
    finally:
        REPLACED.remove(recording)
