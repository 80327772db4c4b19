"""What the coordinator and recovery do next, given an answer."""

import pytest

from postroom.errors import InvalidSetting
from postroom.rules.twophase_plan import (
    Abilities,
    Act,
    Answer,
    Course,
    Decision,
    act_on,
    after_asking_last,
    after_decision,
    after_last,
    after_prepare,
    answer_to_decision,
    course,
)

SERVER = Abilities()
FILE = Abilities(can_prepare=False)
RESOURCE = Abilities(can_commit_alone=False)
BLIND = Abilities(can_list=False, can_commit_alone=False)
YES, NO, LOST = Answer.YES, Answer.NO, Answer.LOST


def test_T_1_one_participant_commits_in_one_phase() -> None:
    assert course({"shop": SERVER}, holder=None, has_last=False) == Course((), "shop", alone=True)
    assert course({"shop": FILE}, holder="shop", has_last=False) == Course((), "shop", alone=True)


def test_T_1_a_users_resource_that_is_alone_still_prepares() -> None:
    assert course({"files": RESOURCE}, holder=None, has_last=False) == Course(("files",))
    assert course({"files": BLIND}, holder=None, has_last=False) == Course(("files",), open_row=True)


def test_T_1_the_holder_decides_by_its_own_commit() -> None:
    participants = {"shop": SERVER, "bank": SERVER}
    assert course(participants, holder="shop", has_last=False) == Course(("bank",), "shop")
    assert course(participants, holder=None, has_last=False) == Course(("shop", "bank"))


def test_T_1_a_branch_that_cannot_be_listed_needs_an_open_row() -> None:
    participants = {"shop": SERVER, "bank": BLIND}
    assert course(participants, holder="shop", has_last=False) == Course(("bank",), "shop", open_row=True)


def test_T_1_beside_a_last_resource_the_holder_prepares() -> None:
    assert course({"shop": SERVER}, holder="shop", has_last=True) == Course(("shop",), open_row=True)


def test_T_1_two_that_cannot_prepare_are_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"'shop' cannot prepare, .* together with a last resource"):
        course({"shop": FILE, "bank": SERVER}, holder="shop", has_last=True)
    with pytest.raises(InvalidSetting, match=r"'shop' cannot prepare: keep the log in its database \(log='shop'\)"):
        course({"shop": FILE, "bank": SERVER}, holder=None, has_last=False)


def test_T_1_all_are_ready_or_nobody_commits() -> None:
    assert after_prepare([YES, YES]) is Act.DECIDE_COMMIT
    assert after_prepare([YES, YES], has_last=True) is Act.CALL_LAST
    assert after_prepare([YES, NO]) is Act.ROLL_BACK
    assert after_prepare([LOST, YES], has_last=True) is Act.ROLL_BACK


@pytest.mark.parametrize(("answer", "act"), [(YES, Act.COMMIT), (NO, Act.ROLL_BACK), (LOST, Act.DECIDE_ABORT)], ids=str)
def test_T_1_a_lost_decision_is_asked_for(answer: Answer, act: Act) -> None:
    assert after_decision(answer) is act


def test_T_1_only_the_servers_own_refusal_counts_as_no() -> None:
    assert answer_to_decision("40001", lost=False) is NO
    assert answer_to_decision(1213, lost=False) is NO
    assert answer_to_decision("57P01", lost=True) is LOST
    assert {answer_to_decision(code, lost=False) for code in ("40003", 1180, 0, None)} == {LOST}


@pytest.mark.parametrize(("answer", "act"), [(YES, Act.COMMIT), (NO, Act.DECIDE_COMMIT), (LOST, Act.DECIDE_COMMIT)])
def test_T_1_once_the_last_resource_has_done_its_work_only_commit_is_written(answer: Answer, act: Act) -> None:
    assert after_decision(answer, has_last=True) is act


def test_T_1_the_last_resource_decides() -> None:
    assert after_last(YES, can_abort=False) is Act.DECIDE_COMMIT
    assert after_last(NO, can_abort=False) is Act.ROLL_BACK
    assert after_last(LOST, can_abort=False) is Act.LEAVE
    assert after_last(LOST, can_abort=True) is Act.ASK_LAST
    assert after_asking_last(YES) is Act.DECIDE_ABORT
    assert after_asking_last(NO) is Act.DECIDE_COMMIT
    assert after_asking_last(LOST) is Act.LEAVE


@pytest.mark.parametrize("past_deadline", [False, True])
def test_T_2_a_decision_is_carried_out_whatever_the_time(*, past_deadline: bool) -> None:
    assert act_on(Decision.COMMIT, past_deadline=past_deadline, has_last=True) is Act.COMMIT
    assert act_on(Decision.ABORT, past_deadline=past_deadline, has_last=True) is Act.ROLL_BACK


@pytest.mark.parametrize("decision", [None, Decision.OPEN])
def test_T_2_without_a_decision_the_coordinator_has_until_the_deadline(decision: Decision | None) -> None:
    assert act_on(decision, past_deadline=False) is Act.LEAVE
    assert act_on(decision, past_deadline=True) is Act.DECIDE_ABORT


def test_T_2_an_open_last_resource_is_asked_or_left_to_an_operator() -> None:
    assert act_on(Decision.OPEN, past_deadline=False, has_last=True, last_can_abort=True) is Act.LEAVE
    assert act_on(Decision.OPEN, past_deadline=True, has_last=True, last_can_abort=True) is Act.ASK_LAST
    assert act_on(Decision.OPEN, past_deadline=True, has_last=True) is Act.QUARANTINE
