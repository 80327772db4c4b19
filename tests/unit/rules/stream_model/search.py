"""What must never be, and when all is sent."""

from collections.abc import Iterator

from tests.unit.rules.state_search import Model, Visited, visit
from tests.unit.rules.stream_model.reader import changes_of_reader
from tests.unit.rules.stream_model.surroundings import changes_around
from tests.unit.rules.stream_model.world import Change, Row, Scenario, World


def search(scenario: Scenario) -> Visited[World]:
    """Visit every state that can be reached; stop at the first that is wrong."""
    return visit(
        Model(
            first=scenario.first(),
            changes=lambda world: _changes(scenario, world),
            in_order=_in_order,
            wrong_with=lambda world: wrong_with(scenario, world),
            is_end=is_end,
        )
    )


def _changes(scenario: Scenario, world: World) -> Iterator[Change]:
    for number in range(len(world.readers)):
        yield from changes_of_reader(scenario, world, number)
    yield from changes_around(scenario, world)


def _in_order(world: World) -> World:
    """Readers are alike: their order makes no other state."""
    if len(world.readers) == 1 or world.readers[0] <= world.readers[1]:
        return world
    return world._replace(readers=world.readers[::-1], owner=3 - world.owner if world.owner else 0)


def wrong_with(scenario: Scenario, world: World) -> str:
    """Say what must never be; empty if nothing is wrong."""
    if world.wrong:
        return world.wrong
    if list(world.received) != sorted(world.received):
        return "out of order"
    for message in world.log[: world.done] if world.named else ():
        is_sent = scenario.logged and message in world.received
        if world.rows[message] is Row.STREAMED and not is_sent:
            return "done by the record, and neither sent nor in the table"
    return ""


def is_end(world: World) -> bool:
    """All that was committed is sent."""
    return len(world.received) == len(world.rows) and Row.DELIVERY not in world.rows
