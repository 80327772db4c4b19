"""What a relay with the lease on the stream can do next; or one that still thinks that it has it."""

from collections.abc import Iterator

from postroom.rules.stream.beginning import Found, Left, Start, read_before, start
from postroom.rules.stream.modes import Mode
from postroom.rules.stream.progress import Progress
from postroom.rules.stream.taking_along import together
from tests.unit.rules.stream_model.world import (
    Change,
    Fate,
    Flying,
    Mistake,
    Phase,
    Reader,
    Row,
    Scenario,
    World,
    fault,
    received,
    with_reader,
    with_row,
)

KEY = "the key of all messages"
UNKNOWN = 99
"""The failure is not on record: no question can be trusted yet."""


def changes_of_reader(scenario: Scenario, world: World, number: int) -> Iterator[Change]:
    reader = world.readers[number]
    steps = {
        Phase.STANDS_BY: _stand_by,
        Phase.LEADS: _lead,
        Phase.SWEEPS: _sweep,
        Phase.BEGINS: _begin,
        Phase.READS: _read,
        Phase.LEAVES: _leave,
    }[reader.phase]
    for name, after, *is_fault in steps(scenario, world, number):
        made = fault if is_fault else Change
        yield made(f"reader {number}: {name}", after)
    if world.faults and reader.phase is not Phase.STANDS_BY:
        yield fault(f"reader {number} is killed", with_reader(world, number, Reader()))
        if reader.believes:
            yield fault(f"reader {number} is late", with_reader(world, number, reader._replace(believes=False)))
    if scenario.stops and reader.phase is Phase.READS:
        leaving = with_reader(world, number, reader._replace(phase=Phase.LEAVES))
        yield Change(f"reader {number} is told to stop", leaving, need_not_happen=True)


Steps = Iterator[tuple[str, World] | tuple[str, World, bool]]


def has_lease(world: World, number: int) -> bool:
    return world.lease and world.owner == number + 1


def _gone(world: World, number: int) -> World:
    """The term has ended without its lease; or with it, and then it is given back with nothing in flight."""
    if has_lease(world, number):
        world = world._replace(owner=0, lease=False, read_to=0)
    return with_reader(world, number, Reader())


def _stand_by(_scenario: Scenario, world: World, number: int) -> Steps:
    if not world.lease and world.mode in {Mode.TABLE, Mode.STREAM} and not world.is_back:
        interrupted = world.owner != 0
        leading = Reader(Phase.LEADS, interrupted=interrupted)
        yield "leads", with_reader(world._replace(owner=number + 1, lease=True), number, leading)


def _lead(_scenario: Scenario, world: World, number: int) -> Steps:
    if not has_lease(world, number):
        yield "has lost the lease", _gone(world, number)
    elif world.slot:
        reader = world.readers[number]._replace(phase=Phase.SWEEPS, slot=world.slot)
        yield "finds the slot", with_reader(world, number, reader)
    elif world.open_streamed is None:  # the server waits for all who write
        slot = world.slots + 1
        yield "makes a slot", world._replace(slot=slot, slots=slot, began=world.end, confirmed=world.end)


def start_of(world: World, reader: Reader) -> Start:
    left = Left("slot" if world.named else "", "", world.done, world.read_to, reader.interrupted)
    return start(left, Found("slot", "", world.confirmed, world.end))


def _sweep(scenario: Scenario, world: World, number: int) -> Steps:
    reader = world.readers[number]
    if not has_lease(world, number) or reader.slot != world.slot:
        yield "has lost lease or slot", _gone(world, number)
        return
    begins = start_of(world, reader)
    after = world
    if scenario.makes(Mistake.NAME_THE_SLOT_FIRST):
        after = world._replace(named=True, done=begins.done)
    elif begins.needs_sweep and not scenario.makes(Mistake.NO_SWEEP):
        after = swept(scenario, world)
    reader = reader._replace(phase=Phase.BEGINS, done=begins.done, known_until=begins.known_until)
    yield "sweeps" if begins.needs_sweep else "goes on where the last one was", with_reader(after, number, reader)


def swept(scenario: Scenario, world: World) -> World:
    """What is in the log alone has no row that could be found."""
    for message in world.log:
        if world.rows[message] is Row.STREAMED and not scenario.logged:
            world = with_row(world, message, Row.DELIVERY)
    return world._replace(read_to=0)


def _begin(_scenario: Scenario, world: World, number: int) -> Steps:
    reader = world.readers[number]
    is_lost = not has_lease(world, number) or reader.slot != world.slot
    if is_lost or world.mode not in {Mode.TABLE, Mode.STREAM}:
        yield "has lost lease, slot or stream", _gone(world, number)
        return
    begun = world._replace(mode=Mode.STREAM, named=True, done=reader.done, read_to=0)
    reader = reader._replace(
        phase=Phase.READS,
        read=reader.done,
        recorded=reader.done,
        known_until=reader.known_until or world.end,
        believes=True,
    )
    yield "begins", with_reader(begun, number, reader)


def _read(scenario: Scenario, world: World, number: int) -> Steps:
    reader = world.readers[number]
    if reader.slot == world.slot and reader.read < world.end:
        yield "receives", with_reader(world, number, _received(scenario, world, reader))
    yield from _work(scenario, world, number)
    if reader.slot != world.slot:
        yield "finds its slot gone", _gone(world, number)
    elif has_lease(world, number):
        done = _done(reader)
        renewed = world._replace(done=max(world.done, done))
        leaves = world.mode is not Mode.STREAM
        beating = reader._replace(recorded=done, believes=True, phase=Phase.LEAVES if leaves else Phase.READS)
        if beating != reader:
            yield "renews", with_reader(renewed, number, beating)
        to = _confirmed(scenario, reader)
        if to > world.confirmed:
            wrong = "confirmed more than the record says" if to > world.done else ""
            yield "confirms", world._replace(confirmed=to, wrong=world.wrong or wrong)
    else:
        yield "finds its lease gone", _gone(world, number)


def _confirmed(scenario: Scenario, reader: Reader) -> int:
    if scenario.makes(Mistake.CONFIRM_WHAT_IS_READ):
        return reader.read
    return _done(reader) if scenario.makes(Mistake.CONFIRM_BEFORE_THE_HEARTBEAT) else reader.recorded


def _received(scenario: Scenario, world: World, reader: Reader) -> Reader:
    """The next message, with what is on record about it, or about its key."""
    place = reader.read + 1
    message, is_known = world.log[place - 1], place <= reader.known_until
    fate = Fate.READ
    if is_known and world.rows[message] is not Row.STREAMED and not scenario.makes(Mistake.RECORD_TWICE):
        fate = Fate.SETTLED
    elif (is_known and reader.interrupted) or (
        Row.DELIVERY in world.rows and not scenario.makes(Mistake.DO_NOT_ASK_THE_TABLE)
    ):
        fate = Fate.UNSENT
        reader = _failed(reader, place)
    return _tidy(reader._replace(read=place, flight=(*reader.flight, Flying(place, fate))))


def _failed(reader: Reader, place: int) -> Reader:
    unknown = reader.failed_at and reader.failure_known == UNKNOWN
    return reader._replace(failed_at=min(place, reader.failed_at) if unknown else place, failure_known=UNKNOWN)


def _progress(reader: Reader) -> Progress:
    progress = Progress(reader.done)
    for one in reader.flight:
        progress.begin(one.place, 1, one.place)
    progress.settle({one.place: 1 for one in reader.flight if one.fate is Fate.SETTLED})
    return progress


def _done(reader: Reader) -> int:
    return _progress(reader).done


def _tidy(reader: Reader) -> Reader:
    """The same memory without what makes no difference any more."""
    done = _done(reader)
    flight = tuple(one for one in reader.flight if one.place > done)
    if (
        reader.failed_at
        and reader.failure_known != UNKNOWN
        and not any(one.fate is Fate.READ and one.place <= reader.failure_known for one in flight)
    ):
        reader = reader._replace(failed_at=0, failure_known=0)
    return reader._replace(done=done, flight=flight)


def _with_fates(reader: Reader, fates: dict[int, Fate]) -> Reader:
    flight = tuple(one._replace(fate=fates.get(one.place, one.fate)) for one in reader.flight)
    return _tidy(reader._replace(flight=flight))


def _work(scenario: Scenario, world: World, number: int) -> Steps:
    """Send, and record."""
    reader = world.readers[number]
    for one in reader.flight:
        if one.fate is Fate.READ:
            yield from _send(scenario, world, number, one.place)
            break
    if any(one.fate in {Fate.SENT, Fate.UNSENT} for one in reader.flight):
        yield from _record(scenario, world, number)


def _send(scenario: Scenario, world: World, number: int, place: int) -> Steps:
    reader, message = world.readers[number], world.log[place - 1]
    if not reader.believes:
        if scenario.makes(Mistake.DROP_WHAT_IS_LATE):
            yield "drops it", with_reader(world, number, _with_fates(reader, {place: Fate.DROPPED}))
        else:
            unsent = _with_fates(_failed(reader, place), {place: Fate.UNSENT})
            yield "gives it back", with_reader(world, number, unsent)
        return
    must_drop = reader.failed_at and reader.failed_at < place <= reader.failure_known
    if must_drop and not scenario.makes(Mistake.FORGET_FAILED_KEYS):
        yield "holds it back", with_reader(world, number, _with_fates(_failed(reader, place), {place: Fate.UNSENT}))
        return
    fate = Fate.SETTLED if scenario.logged or scenario.makes(Mistake.DONE_WHEN_SENT) else Fate.SENT
    yield "sends it", with_reader(received(world, message), number, _with_fates(reader, {place: fate}))
    if world.faults and scenario.refusals:
        unsent = _with_fates(_failed(reader, place), {place: Fate.UNSENT})
        yield "is refused", with_reader(world, number, unsent), True


def _record(scenario: Scenario, world: World, number: int) -> Steps:
    reader = world.readers[number]
    if not has_lease(world, number) and not scenario.makes(Mistake.RECORD_WITHOUT_TOKEN):
        yield "may not record", _gone(world, number)
        return
    sent = [one.place for one in reader.flight if one.fate is Fate.SENT]
    unsent = [one.place for one in reader.flight if one.fate is Fate.UNSENT]
    if unsent:
        undecided = [(KEY, one.place) for one in reader.flight if one.fate is Fate.READ]
        found = together({KEY: min(unsent)}, undecided)
        if found.too_early:
            unsent = []
        elif not scenario.makes(Mistake.LEAVE_THOSE_BEHIND):
            unsent += found.along
    if not sent and not unsent:
        return
    for place, row in [*((place, Row.RECEIPT) for place in sent), *((place, Row.DELIVERY) for place in unsent)]:
        world = _recorded(world, world.log[place - 1], row)
    if unsent:
        reader = reader._replace(failure_known=reader.read)
    after = _with_fates(reader, dict.fromkeys([*sent, *unsent], Fate.SETTLED))
    yield "records", with_reader(world, number, after)


def _recorded(world: World, message: int, row: Row) -> World:
    if world.rows[message] is Row.RECEIPT and row is Row.DELIVERY:
        world = world._replace(wrong=world.wrong or "on record as sent, and in the table again")
    return world if world.rows[message] in {Row.RECEIPT, Row.DELIVERY} else with_row(world, message, row)


def _leave(scenario: Scenario, world: World, number: int) -> Steps:
    """It reads no more, ends what it has begun with, and drops the rest: whoever reads next reads it again."""
    reader = world.readers[number]
    if any(one.fate in {Fate.SENT, Fate.UNSENT} for one in reader.flight):
        yield from _record(scenario, world, number)
    elif has_lease(world, number):
        known_until = 0 if scenario.makes(Mistake.FORGET_EARLIER_READERS) else reader.known_until
        read_to = read_before(known_until, reader.read)
        left = world._replace(owner=0, lease=False, done=max(world.done, _done(reader)), read_to=read_to)
        yield "leaves", with_reader(left, number, Reader())
    else:
        yield "finds its lease gone", _gone(world, number)
    if not has_lease(world, number):
        yield "gives up", _gone(world, number)
