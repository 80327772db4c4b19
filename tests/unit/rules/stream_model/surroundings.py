"""What others do: producers, those who send from the table, the operator, the server and time."""

from collections.abc import Iterator

from postroom.rules.stream.modes import STREAMING, Mode
from tests.unit.rules.stream_model.reader import swept
from tests.unit.rules.stream_model.world import (
    Change,
    Mistake,
    Phase,
    Reader,
    Row,
    Scenario,
    World,
    fault,
    received,
    with_row,
)


def changes_around(scenario: Scenario, world: World) -> Iterator[Change]:
    yield from _producer(scenario, world)
    yield from _table(scenario, world)
    yield from _time(world)
    if scenario.goes_back:
        yield from _way_back(scenario, world)
    if scenario.server_can_fail and world.faults and world.slot:
        yield fault("the slot is dropped", world._replace(slot=0, began=0, confirmed=0))
        ended = world._replace(readers=(Reader(),) * len(world.readers), open_streamed=None, older=False)
        yield fault("the server crashes, and forgets what was confirmed", ended._replace(confirmed=world.began))


def _producer(scenario: Scenario, world: World) -> Iterator[Change]:
    if world.open_streamed is not None:
        message = world.rows.index(Row.ABSENT)
        if world.open_streamed:
            after = with_row(world, message, Row.STREAMED)._replace(log=(*world.log, message))
        else:
            after = with_row(world, message, Row.DELIVERY)
        yield Change("the producer commits", after._replace(open_streamed=None, older=False))
    elif Row.ABSENT in world.rows and not (scenario.logged and world.mode is not Mode.STREAM):
        yield Change("the producer adds", world._replace(open_streamed=world.mode in STREAMING))


def _table(scenario: Scenario, world: World) -> Iterator[Change]:
    """Relays send what is in the table, the first of a key first."""
    if Row.DELIVERY in world.rows and (not world.mode.lanes_rest or scenario.makes(Mistake.LANES_GO_ON)):
        message = world.rows.index(Row.DELIVERY)
        yield Change("the table sends", with_row(received(world, message), message, Row.RECEIPT))


def _time(world: World) -> Iterator[Change]:
    """A lease ends if nobody renews it. Its reader knows no later than the database."""
    if world.lease:
        reader = world.readers[world.owner - 1]
        if reader.phase is Phase.STANDS_BY or not reader.believes:
            yield Change("the lease ends", world._replace(lease=False), need_not_happen=reader.phase > Phase.STANDS_BY)


def _way_back(scenario: Scenario, world: World) -> Iterator[Change]:
    if world.mode is Mode.STREAM:
        at_once = scenario.makes(Mistake.TABLE_AT_ONCE)
        mode = Mode.TABLE if at_once else Mode.CLOSING
        yield Change("cdc off", world._replace(mode=mode, is_back=at_once), need_not_happen=True)
    if world.mode is Mode.CLOSING and not world.lease:
        yield Change("drains", world._replace(mode=Mode.DRAINING, older=world.open_streamed is not None))
    must_wait = world.older and not scenario.makes(Mistake.FORGET_OPEN_TRANSACTIONS)
    if world.mode is Mode.DRAINING and not world.lease and not must_wait:
        back = swept(scenario, world)._replace(mode=Mode.TABLE, named=False, is_back=True)
        yield Change("is in the table", back._replace(slot=0, began=0, confirmed=0))
