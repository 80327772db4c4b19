"""Whose fault it is, for every case that there is."""

from __future__ import annotations

from itertools import product

import pytest

from postroom.rules.faults import Fault, of_unavailable, of_unreached, of_whole_call

BOTH = (False, True)


@pytest.mark.parametrize(("alone", "beside", "broker_worked", "target_worked"), list(product(BOTH, repeat=4)))
def test_R_9_who_is_at_fault_when_the_broker_was_not_reached(
    *, alone: bool, beside: bool, broker_worked: bool, target_worked: bool
) -> None:
    fault = of_unreached(alone=alone, beside=beside, broker_worked=broker_worked, target_worked=target_worked)
    assert (fault is Fault.BROKER) == (not beside and not broker_worked), "down only when nothing gets through"
    if fault is Fault.MESSAGE:
        assert alone
        assert broker_worked
        assert target_worked
    if fault is Fault.TARGET:
        assert alone
        assert broker_worked
        assert not target_worked
    if beside:
        assert fault is Fault.UNDECIDED


@pytest.mark.parametrize(
    ("by_message", "beside", "target_worked", "fault"),
    [
        (False, False, False, Fault.TARGET),
        (False, False, True, Fault.TARGET),
        (False, True, False, Fault.UNDECIDED),
        (False, True, True, Fault.UNDECIDED),
        (True, False, False, Fault.TARGET),
        (True, True, False, Fault.UNDECIDED),
        (True, False, True, Fault.MESSAGE),
        (True, True, True, Fault.MESSAGE),
    ],
)
def test_R_9_who_is_at_fault_when_the_broker_has_no_place(
    *, by_message: bool, beside: bool, target_worked: bool, fault: Fault
) -> None:
    assert of_unavailable(by_message=by_message, beside=beside, target_worked=target_worked) is fault


def test_R_9_only_what_failed_alone_is_known_to_be_at_fault_for_a_whole_call() -> None:
    assert of_whole_call(alone=True) is Fault.MESSAGE
    assert of_whole_call(alone=False) is Fault.UNDECIDED
