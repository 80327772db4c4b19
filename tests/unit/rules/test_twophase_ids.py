"""Ids of transactions and branches fit every server, and are told from others'."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import InvalidSetting
from postroom.rules.twophase_ids import (
    FORMAT_ID,
    LONGEST_PARTICIPANT,
    BranchId,
    bqual,
    checked_participant,
    deadline_of,
    gid,
    gtrid,
    read_gid,
    read_xid,
    transaction_id,
)

HEX = "0123456789abcdef"
LATEST = 36**12 - 1
DEADLINES = st.integers(0, LATEST)
RANDOM = st.text(HEX, min_size=12, max_size=12)
SCOPES = st.text(HEX, min_size=8, max_size=8)
NAMES = st.text("abcxyz019_-", min_size=1, max_size=LONGEST_PARTICIPANT).filter("last".__ne__)
CONNECTIONS = st.integers(1, 2**64 - 1)
STARTS = st.integers(0, 2**32 - 1)
TXS = st.builds(transaction_id, DEADLINES, RANDOM)


@given(DEADLINES, RANDOM)
def test_T_1_an_id_tells_its_deadline(deadline: int, random: str) -> None:
    assert deadline_of(transaction_id(deadline, random)) == deadline


def test_T_1_the_deadline_is_in_base_36() -> None:
    assert transaction_id(1_800_000_000_000, "0123456789ab") == "mywpiww0-0123456789ab"


@pytest.mark.parametrize("tx", ["", "-0123456789ab", "zz", "zz-0123456789a", "zz-0123456789AB", "ZZ-0123456789ab"])
def test_what_is_no_id_has_no_deadline(tx: str) -> None:
    assert deadline_of(tx) is None


@pytest.mark.parametrize(
    ("deadline", "random"), [(-1, ""), (LATEST + 1, "0123456789ab"), (1, "0123456789aB"), (1, "0123456789ab'")]
)
def test_an_id_that_could_not_be_read_is_not_made(deadline: int, random: str) -> None:
    with pytest.raises(ValueError, match="make no id"):
        transaction_id(deadline, random)


BRANCHES = st.builds(BranchId, SCOPES, TXS, NAMES, st.just(0), st.just(0), st.booleans())


@given(BRANCHES, CONNECTIONS, STARTS)
def test_T_1_ids_fit_every_server_and_are_read_back(on_postgresql: BranchId, connection: int, started: int) -> None:
    checked_participant(on_postgresql.participant)
    on_mysql = on_postgresql._replace(connection=connection, started=started)
    for branch in (on_postgresql, on_mysql):
        assert len(branch.text) < 200
        assert branch.text.isascii()
        assert branch.text.isprintable()
        assert not set("'\"\\ ") & set(branch.text)
        assert read_gid(branch.text) == branch
    ours, theirs = gtrid(on_mysql.scope, on_mysql.tx), bqual(on_mysql)
    assert len(ours) <= 64
    assert len(theirs) <= 64
    assert read_xid(FORMAT_ID, ours, theirs) == on_mysql


@given(st.tuples(SCOPES, TXS, NAMES), st.tuples(SCOPES, TXS, NAMES))
def test_T_1_different_branches_have_different_ids(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assert (gid(*one) == gid(*other)) == (one == other)


@given(st.integers(), st.binary(max_size=64), st.binary(max_size=64))
def test_T_2_others_ids_are_not_ours(format_id: int, theirs: bytes, branch: bytes) -> None:
    assert read_xid(format_id, theirs, branch) is None
    assert read_xid(FORMAT_ID, theirs, branch) is None
    assert read_gid(theirs.decode("latin-1")) is None


OURS = (gtrid("0a1b2c3d", "zz-0123456789ab"), b"bank:7:t6xkcz:m")


@pytest.mark.parametrize(
    ("format_id", "theirs", "branch"),
    [
        (1, *OURS),
        (FORMAT_ID, OURS[0] + b"\n", OURS[1]),
        (FORMAT_ID, OURS[0], OURS[1] + b"\n"),
        (FORMAT_ID, OURS[0], b"bank"),
        (FORMAT_ID, OURS[0], b"bank:7"),
        (FORMAT_ID, OURS[0], b"bank:0:t6xkcz"),
        (FORMAT_ID, OURS[0], b"bank:07:t6xkcz"),
        (FORMAT_ID, OURS[0], b"bank:7:t6xkcz:n"),
        (FORMAT_ID, OURS[0].replace(b"pr1", b"pr2"), OURS[1]),
        (FORMAT_ID, b"\xff" + OURS[0], OURS[1]),
    ],
)
def test_T_2_an_id_that_only_looks_like_ours_is_not(format_id: int, theirs: bytes, branch: bytes) -> None:
    assert read_xid(FORMAT_ID, *OURS) is not None
    assert read_xid(format_id, theirs, branch) is None


@pytest.mark.parametrize("name", ["", "Bank", "b" * 25, "a:b", "a'b", "bänk", "a\n", 7, None])
def test_a_name_that_is_not_valid_is_refused(name: object) -> None:
    with pytest.raises(InvalidSetting, match="is not valid: give 1 to 24"):
        checked_participant(name)


def test_the_name_of_the_last_resource_is_taken() -> None:
    with pytest.raises(InvalidSetting, match="'last' is taken by the resource given as last="):
        checked_participant("last")
