"""Transactions to search, each with what may happen to it; and for each mistake one where it shows."""

from types import MappingProxyType

from tests.unit.rules.twophase_model.world import Kind, Last, Mistake, Scenario

HOLDER, POSTGRESQL, MARIADB, RESOURCE = Kind.HOLDER, Kind.POSTGRESQL, Kind.MARIADB, Kind.RESOURCE

SMALL = MappingProxyType(
    {
        "the log at a participant": Scenario((HOLDER, MARIADB), 2),
        "the log apart": Scenario((POSTGRESQL, MARIADB), 1, recoveries=1),
        "a resource that cannot list": Scenario((HOLDER, RESOURCE), 1),
        "a last resource": Scenario((POSTGRESQL,), 2, Last.CAN_ABORT),
        "a last resource beside the log": Scenario((HOLDER,), 1, Last.CAN_ABORT),
        "a last resource that cannot abort": Scenario((POSTGRESQL,), 2, Last.CANNOT_ABORT),
        "somebody meddles": Scenario((HOLDER, POSTGRESQL), 2, has_witness=True, may_meddle=True),
    }
)
"""Searched at every check."""

LARGE = MappingProxyType(
    {
        "the log at a participant": Scenario((HOLDER, MARIADB), 4),
        "the log apart": Scenario((POSTGRESQL, MARIADB), 1),
        "three databases": Scenario((HOLDER, POSTGRESQL, MARIADB), 2, recoveries=1),
        "a resource that cannot list": Scenario((HOLDER, MARIADB, RESOURCE), 1, recoveries=1),
        "a last resource": Scenario((POSTGRESQL,), 3, Last.CAN_ABORT),
        "a last resource beside a resource": Scenario((RESOURCE,), 2, Last.CAN_ABORT),
        "a last resource that cannot abort": Scenario((HOLDER, MARIADB), 1, Last.CANNOT_ABORT, recoveries=1),
        "somebody meddles": Scenario((HOLDER, MARIADB), 3, has_witness=True, may_meddle=True),
    }
)
"""Searched by the whole suite."""

PAIR = (HOLDER, POSTGRESQL)
LAST = (POSTGRESQL,)

WRONG = MappingProxyType(
    {
        Mistake.TRUST_THE_ANSWER_TO_PREPARE: Scenario(PAIR, 1, recoveries=1),
        Mistake.LOST_PREPARE_IS_READY: Scenario(PAIR, 2, recoveries=1),
        Mistake.DECIDE_EARLY: Scenario((POSTGRESQL, POSTGRESQL), 0, recoveries=1),
        Mistake.NO_LOG: Scenario((POSTGRESQL, POSTGRESQL), 1, recoveries=1),
        Mistake.COMMIT_WITHOUT_LOOKING: Scenario(PAIR, 0, recoveries=1),
        Mistake.LOST_DECISION_IS_NO: Scenario(PAIR, 1, recoveries=1),
        Mistake.DECIDE_WITHOUT_DEADLINE: Scenario(PAIR, 0, recoveries=1),
        Mistake.CLOSING_ROLLS_BACK: Scenario(PAIR, 1, recoveries=1),
        Mistake.NO_SESSION_TIMEOUTS: Scenario(PAIR, 0, recoveries=1),
        Mistake.NO_ROW_IS_ABORT: Scenario(PAIR, 0, recoveries=1),
        Mistake.ROW_THAT_WAS_THERE_IS_IGNORED: Scenario(PAIR, 0, recoveries=1),
        Mistake.LIST_BEFORE_ASKING: Scenario((HOLDER, MARIADB), 0, recoveries=1),
        Mistake.WITNESS_BEFORE_ASKING: Scenario(PAIR, 0, has_witness=True, recoveries=1),
        Mistake.OLD_WITNESS: Scenario(PAIR, 1, has_witness=True, recoveries=1),
        Mistake.LOOK_THROUGH_THE_LOCK: Scenario(PAIR, 0, recoveries=1),
        Mistake.IMPATIENT: Scenario(PAIR, 0, recoveries=1),
        Mistake.NOT_FOUND_IS_DONE: Scenario((HOLDER, MARIADB), 1, recoveries=1),
        Mistake.NEVER_KILL: Scenario((HOLDER, MARIADB), 0, recoveries=1),
        Mistake.UNKNOWN_IS_DONE: Scenario(PAIR, 2, recoveries=1),
        Mistake.UNREACHED_IS_SETTLED: Scenario(PAIR, 1, recoveries=1),
        Mistake.SETTLE_WHAT_IS_LISTED: Scenario((POSTGRESQL, MARIADB), 1, recoveries=1),
        Mistake.SCAN_ONCE: Scenario((POSTGRESQL, POSTGRESQL), 1, recoveries=1),
        Mistake.NO_WITNESS: Scenario(PAIR, 2, has_witness=True, may_meddle=True, recoveries=1),
        Mistake.FORGET_UNSETTLED: Scenario(PAIR, 1, recoveries=1),
        Mistake.NO_OPEN_ROW: Scenario((HOLDER, RESOURCE), 1, recoveries=1),
        Mistake.SETTLE_ABORTS_AT_ONCE: Scenario((POSTGRESQL, RESOURCE), 1, recoveries=1),
        Mistake.FORGETFUL_RESOURCE: Scenario((HOLDER, RESOURCE), 1, recoveries=1),
        Mistake.HOLDER_BESIDE_LAST: Scenario((HOLDER,), 1, Last.CAN_ABORT, recoveries=1),
        Mistake.LAST_COMES_FIRST: Scenario(LAST, 1, Last.CAN_ABORT, recoveries=1),
        Mistake.LAST_WITHOUT_A_ROW: Scenario(LAST, 1, Last.CAN_ABORT, recoveries=1),
        Mistake.LOST_LAST_IS_NO: Scenario(LAST, 1, Last.CANNOT_ABORT, recoveries=1),
        Mistake.ABORT_WITHOUT_ASKING_LAST: Scenario(LAST, 0, Last.CAN_ABORT, recoveries=1),
        Mistake.ASK_ANOTHER_LAST: Scenario(LAST, 1, Last.CAN_ABORT, recoveries=1),
        Mistake.ABORT_AFTER_LAST: Scenario(LAST, 1, Last.CAN_ABORT, recoveries=1),
        Mistake.LAST_FORGETS: Scenario(LAST, 0, Last.CAN_ABORT, recoveries=1),
        Mistake.DEADLINE_AFTER_LAST: Scenario(LAST, 0, Last.CAN_ABORT, recoveries=1),
    }
)
"""Where each mistake shows."""
