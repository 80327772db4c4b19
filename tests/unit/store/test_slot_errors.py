"""A server that makes no slot is told what to do about it, once and clearly."""

from __future__ import annotations

import psycopg
import pytest

from postroom.errors import CdcUnavailable, PostroomError, PrivilegeMissing
from postroom.store.sql.names import Names
from postroom.store.stream.slots import Slots


@pytest.mark.parametrize(
    ("refused", "raised", "remedy"),
    [
        (psycopg.errors.ConfigurationLimitExceeded, CdcUnavailable, "raise max_replication_slots"),
        (psycopg.errors.ObjectNotInPrerequisiteState, CdcUnavailable, "set wal_level = logical"),
        (psycopg.errors.InsufficientPrivilege, PrivilegeMissing, "--for cdc"),
        (psycopg.errors.DuplicateObject, psycopg.errors.DuplicateObject, "no"),
    ],
)
def test_R_7_what_the_server_lacks_is_named_with_its_remedy(
    refused: type[psycopg.Error], raised: type[PostroomError], remedy: str
) -> None:
    steps = Slots(Names.of("postgresql")).create_slot("slot", 180_000)
    next(steps)
    with pytest.raises(raised, match=remedy):
        steps.throw(refused("the server says no"))
