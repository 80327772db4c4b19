"""Whether the tables, and what belongs to them, are those that this version needs."""

from collections.abc import Mapping, Sequence

from postroom.rules.checks.findings import Finding, counted, fail, named, ok, skip, warn

INIT = "run `postroom init`"
REPAIR = "run `postroom init --repair`"


def version(found: int | None, needed: int, *, has_tables: bool) -> Finding:
    """Whether the tables have the version that this Postroom works with."""
    if found is None and not has_tables:
        return fail("Postroom's tables are not in this database", INIT, found=None, needed=needed)
    if found is None:
        evidence = "the tables are there, but no version is on record: a migration tool made them"
        return warn(evidence, INIT, found=None, needed=needed)
    if found == needed:
        return ok(f"version {found}", found=found, needed=needed)
    if found == 0:
        return fail("creating the tables was interrupted", INIT, found=found, needed=needed)
    evidence = f"the tables are at version {found}, this Postroom works with version {needed}"
    return fail(evidence, INIT if found < needed else "upgrade postroom", found=found, needed=needed)


def tables(missing: Sequence[str], expected: int, hidden: int = 0) -> Finding:
    """Whether every table, column and index is there. `hidden`: tables that the database's user may not see."""
    if not missing:
        evidence = f"{counted(expected - hidden, 'table')}, with all columns and indexes"
        if hidden:
            evidence += f" ({hidden} more are hidden from this user)"
        return ok(evidence, tables=expected, hidden=hidden)
    remedy = "create what is missing as `postroom schema --sql` prints it"
    return fail(f"missing: {named(missing)}", remedy, missing=list(missing))


def view(problem: str | None) -> Finding:
    """Whether `outbox_status` can be read."""
    if problem is None:
        return ok("outbox_status can be read")
    return fail(f"the view outbox_status cannot be read: {problem}", REPAIR)


def function(*, there: bool, is_ours: bool, is_public: bool) -> Finding:
    """Whether PostgreSQL's function `add` is this version's, and not open to everybody."""
    if not there:
        return fail("the function add is missing: programs in plain SQL cannot add messages", REPAIR)
    if not is_ours:
        return warn("the function add is not this version's", REPAIR)
    if is_public:
        return warn("every role may call the function add", REPAIR)
    return ok("the function add is this version's")


def lanes(there: Mapping[str, int], needed: int) -> Finding:
    """Whether each queue has all its lanes, without which messages with a key do not leave."""
    short = {queue: count for queue, count in there.items() if count < needed}
    if not short:
        return ok(f"{needed} lanes in each of {counted(len(there), 'queue')}", queues=len(there))
    evidence = named(f"queue {queue} has {count} of {needed}" for queue, count in sorted(short.items()))
    return fail(f"lanes are missing: {evidence}", REPAIR, lanes=short)


def storage(found: Mapping[str, str], wanted: Mapping[str, str], remedy: str) -> Finding:
    """Whether tables are stored as they should be: migration tools leave such parameters out."""
    different = [name for name, value in wanted.items() if found.get(name) != value]
    if not different:
        return ok("the tables are stored as they should be")
    evidence = named(f"{name} is {found.get(name, 'not set')} instead of {wanted[name]}" for name in different)
    return warn(f"storage parameters: {evidence}", remedy, different=different)


def guards(missing: Sequence[str]) -> Finding:
    """Whether the tables refuse rows that plain SQL got wrong."""
    if not missing:
        return ok("rows that nobody could send are refused")
    remedy = f"{REPAIR}, or on MySQL and MariaDB add them as `postroom schema --sql` prints them"
    return warn(f"guards are missing: {named(missing)}", remedy, missing=list(missing))


def privileges(purposes: Mapping[str, Sequence[str]], user: str) -> Finding:
    """Whether the database's user may do what it is for. `purposes`: what each lacks."""
    lacking = {purpose: list(missing) for purpose, missing in purposes.items() if missing}
    if not lacking:
        return ok(f"the user has the privileges of: {', '.join(purposes)}")
    evidence = "; ".join(f"for {purpose}: {named(missing)}" for purpose, missing in lacking.items())
    wanted = " ".join(f"--for {purpose}" for purpose in lacking)
    remedy = f"have the owner run what `postroom schema --grants {user or 'ROLE'} {wanted}` prints"
    return fail(f"the user lacks privileges {evidence}", remedy, missing=lacking)


def no_privileges() -> Finding:
    """SQLite."""
    return skip("SQLite has no roles: anyone who can open the file can do everything")
