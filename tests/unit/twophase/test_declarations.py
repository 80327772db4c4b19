"""What a `TwoPhaseCommit` cannot be made of is refused where it is given, with the value and the remedy."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from postroom import TwoPhaseCommit
from postroom.errors import InvalidSetting

SHOP = "sqlite:///shop.db"


class Files:
    def prepare(self, id: str) -> None: ...

    def commit(self, id: str) -> None: ...

    def abort(self, id: str) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"participants": {}}, "participants is empty: give them by name"),
        ({"participants": None}, "participants is empty: give them by name"),
        ({"participants": [SHOP]}, "participants is a list: give them by name"),
        ({"participants": {"files": Files}}, r"participant 'files' is given as a class: give an object, Files\(…\)"),
        ({"participants": {"bank": 7}}, r"'bank' is given as builtins\.int: give the URL .* prepare\(id\), commit"),
        ({"participants": {"Bank": SHOP}}, "participant name 'Bank' is not valid"),
        ({"timeout": "30"}, "timeout = '30' is not valid: give seconds"),
        ({"timeout": None}, "timeout = None is not valid"),
        ({"timeout": True}, "timeout = True is not valid"),
        ({"timeout": 0}, "timeout = 0 is not valid"),
        ({"timeout": float("nan")}, "timeout = nan is not valid"),
        ({"last": Files}, r"last = <class .*Files'> cannot take part: give an object with commit\(id\)"),
        ({"last": "files"}, "last = 'files' cannot take part"),
        ({"log": None}, r"'log' is given as builtins\.NoneType: give the URL"),
        ({"log": "files"}, "log = 'files' is no participant that is a database"),
    ],
)
def test_wrong_input_is_refused(wrong: dict[str, Any], message: str) -> None:
    right: dict[str, Any] = {"log": SHOP, "participants": {"shop": SHOP, "files": Files()}}
    assert TwoPhaseCommit(**right).holder == "shop"
    with pytest.raises(InvalidSetting, match=message):
        TwoPhaseCommit(**right | wrong)


def test_the_holder_is_found_by_the_engine_of_its_sessions() -> None:
    engine = create_engine(SHOP)
    bank = create_engine("sqlite:///bank.db")
    both = {"bank": sessionmaker(bank), "shop": sessionmaker(engine)}
    assert TwoPhaseCommit(log=engine, participants=both).holder == "shop"
    assert TwoPhaseCommit(log=create_engine(SHOP), participants=both).holder is None
