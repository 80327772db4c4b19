from __future__ import annotations

import pytest

from postroom.errors import DatabaseUnreachable, InvalidSetting
from postroom.runtime.error_groups import first_error_only


def test_a_group_of_our_own_errors_is_raised_as_its_first_one() -> None:
    first = InvalidSetting("the port is taken")
    with pytest.raises(InvalidSetting) as raised, first_error_only():
        raise ExceptionGroup("tasks", [ExceptionGroup("nested", [first]), DatabaseUnreachable("gone")])
    assert raised.value is first


def test_a_group_with_an_error_of_others_stays_whole() -> None:
    group = ExceptionGroup("tasks", [InvalidSetting("the port is taken"), ZeroDivisionError()])
    with pytest.raises(ExceptionGroup) as raised, first_error_only():
        raise group
    assert raised.value is group
