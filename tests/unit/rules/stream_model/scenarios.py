"""What is searched: each scenario is small, and together they show all that can go wrong."""

from tests.unit.rules.stream_model.world import Mistake, Scenario

KILLS = Scenario(messages=2, faults=2)
THREE = Scenario(messages=3, faults=1, readers=1, stops=True)
BAD_SERVER = Scenario(messages=2, faults=2, readers=1, server_can_fail=True, refusals=False)
WAY_BACK = Scenario(messages=2, faults=1, goes_back=True)
LOG_ALONE = Scenario(messages=2, faults=2, logged=True)

SCENARIOS = {
    "kills and refusals": KILLS,
    "three messages": THREE,
    "a server that crashes and loses slots": BAD_SERVER,
    "the way back": WAY_BACK,
    "messages in the log alone": LOG_ALONE,
}

WRONG = {
    Mistake.CONFIRM_WHAT_IS_READ: LOG_ALONE,
    Mistake.CONFIRM_BEFORE_THE_HEARTBEAT: KILLS,
    Mistake.DONE_WHEN_SENT: KILLS,
    Mistake.NO_SWEEP: BAD_SERVER,
    Mistake.NAME_THE_SLOT_FIRST: BAD_SERVER,
    Mistake.RECORD_WITHOUT_TOKEN: KILLS,
    Mistake.DROP_WHAT_IS_LATE: LOG_ALONE,
    Mistake.FORGET_FAILED_KEYS: KILLS,
    Mistake.LEAVE_THOSE_BEHIND: THREE,
    Mistake.DO_NOT_ASK_THE_TABLE: KILLS,
    Mistake.RECORD_TWICE: KILLS,
    Mistake.FORGET_EARLIER_READERS: THREE,
    Mistake.TABLE_AT_ONCE: WAY_BACK,
    Mistake.LANES_GO_ON: WAY_BACK,
    Mistake.FORGET_OPEN_TRANSACTIONS: WAY_BACK,
}
"""For each mistake, where it shows."""
