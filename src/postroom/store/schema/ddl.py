"""The schema as SQL text, without a connection: for `postroom schema --sql`, for `init`, and for other migration tools.

No statement holds a percent sign on PostgreSQL or MySQL: some drivers would take it for a parameter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable, DDLElement

from postroom.rules.naming import RESERVED, RESERVED_HEADERS
from postroom.rules.ordering import LANES, NO_LANE, Order
from postroom.rules.stream.modes import STREAM, Mode
from postroom.store.admin.status import SENDING_LANE, STATUS
from postroom.store.schema.guards import triggers
from postroom.store.schema.tables import STORAGE, metadata
from postroom.store.schema.versions import COMPATIBLE_FROM, VERSION
from postroom.store.sql.behind import is_behind
from postroom.store.sql.dialect import DIALECTS, EARLIEST, LATEST
from postroom.store.sql.names import Names, dialect_of
from postroom.store.sql.operations import DEFAULT_QUEUE
from postroom.store.stream.streamed import stream_mode

if TYPE_CHECKING:
    from sqlalchemy import Index, Table
    from sqlalchemy.engine import Dialect


def create_statements(dialect_name: str, names: Names) -> list[str]:
    """Every statement that a new database needs, in order and without semicolons. `names` are for the same dialect."""
    if dialect_of(dialect_name) != names.dialect:
        raise ValueError(f"the names are for {names.dialect}, not for {dialect_name}")
    return [*schema_statements(names), *table_statements(names), *completing_statements(names)]


def schema_statements(names: Names) -> list[str]:
    """The statement that creates the schema, if there is one to create."""
    if names.dialect != "postgresql" or names.schema in (None, "public"):
        return []
    return [f"CREATE SCHEMA IF NOT EXISTS {names.quoted(names.schema)}"]


def table_statements(names: Names) -> list[str]:
    """Tables and indexes, none of which may exist yet."""
    statements: list[DDLElement] = []
    for table in metadata(names).tables.values():
        statements.append(CreateTable(table))
        statements += map(CreateIndex, indexes_of(table))
    return [_compiled(statement, names) for statement in statements]


def indexes_of(table: Table) -> list[Index]:
    """The table's indexes, always in the same order."""
    return sorted(table.indexes, key=lambda index: str(index.name))


def completing_statements(names: Names) -> list[str]:
    """What MetaData cannot hold: storage parameters, triggers, view, function and first rows.

    Safe to run again at any time. A project whose Alembic makes the tables can run these with ``op.execute``.
    """
    postgresql_only = (
        [_storage(names), *add_function(names), first_stream(names)] if names.dialect == "postgresql" else []
    )
    versions = version_rows(names, *range(COMPATIBLE_FROM, VERSION + 1))
    return [*postgresql_only, *triggers(names), *status_view(names), first_lanes(names), versions]


def version_rows(names: Names, *versions: int) -> str:
    """The statement that lists versions whose code works with the tables."""
    return _insert_missing(names, "schema_version", "version", [f"({version})" for version in versions])


def first_lanes(names: Names) -> str:
    """The statement that creates the default queue's lanes."""
    return _insert_missing(names, "outbox_lane", "queue, lane", [f"('{DEFAULT_QUEUE}', {n})" for n in range(LANES)])


def first_stream(names: Names) -> str:
    """The statement that creates the row of the stream, which is not in use."""
    return _insert_missing(names, "outbox_stream", "name", [f"('{STREAM}')"])


def _insert_missing(names: Names, table: str, columns: str, rows: list[str]) -> str:
    verb, otherwise = ("INSERT IGNORE", "") if names.dialect == "mysql" else ("INSERT", "\nON CONFLICT DO NOTHING")
    return f"{verb} INTO {names.table(table)} ({columns}) VALUES\n    {', '.join(rows)}{otherwise}"


def _compiled(statement: DDLElement, names: Names) -> str:
    dialects = {"postgresql": postgresql.dialect, "mysql": mysql.dialect, "sqlite": sqlite.dialect}
    dialect: Dialect = dialects[names.dialect]()
    lines = str(statement.compile(dialect=dialect)).strip().splitlines()
    return "\n".join(line.rstrip().replace("\t", "    ") for line in lines)


def _storage(names: Names) -> str:
    parameters = ", ".join(f"{name} = {value}" for name, value in STORAGE.items())
    return f"ALTER TABLE {names.table('outbox_delivery')} SET ({parameters})"


def status_view(names: Names) -> list[str]:
    """The view `outbox_status`: every message with its state, in the words of the command line.

    It starts at deliveries and receipts, because the delivery table has no index that begins with the position. `queue`
    is where an unsent message waits, and where a settled one was added. What is not set (never leased, no error) is
    NULL, whatever stands for it in the tables. A view knows no settings: it assumes the default `order`, by which dead
    messages hold their key back.
    """
    view = names.table("outbox_status")
    dialect = DIALECTS[names.dialect]
    words = {**names.mapping(), "key": names.quoted("key"), "now": dialect.now, "never": dialect.never}
    words["behind"] = is_behind(names, Order.HOLD)
    select = _STATUS.format(**words, status=STATUS.format(**words), sending_lane=SENDING_LANE.format(**words))
    if names.dialect == "sqlite":
        return [f"DROP VIEW IF EXISTS {view}", f"CREATE VIEW {view} AS\n{select}"]
    return [f"CREATE OR REPLACE VIEW {view} AS\n{select}"]


def add_function(names: Names) -> list[str]:
    """PostgreSQL's function `add`: programs in any language record a message with it, in their own transaction.

    It runs with the rights of the tables' owner. So a role that may only call it can record messages, but cannot write
    what the function refuses. Only roles that are granted it may call it.
    """
    add = names.table("add")
    function = _ADD.format(
        **names.mapping(),
        add=add,
        no_lane=NO_LANE,
        lane_mask=LANES - 1,
        reserved=RESERVED,
        control=CONTROL,
        reserved_headers=RESERVED_HEADERS,
        stream_mode=stream_mode(names.table("outbox_stream")),
        by_relays=Mode.STREAM,
        earliest=EARLIEST,
        latest=LATEST,
    )
    return [function, f"REVOKE ALL ON FUNCTION {add} FROM PUBLIC"]


CONTROL = r"[\x01-\x1F\x7F-\x9F]"

_STATUS = """\
SELECT m.position, m.id, d.queue, m.topic, m.type, m.ordering_key AS {key},
    {status} AS status,
    d.attempts,
    nullif(d.due, {never}) AS due,
    nullif(coalesce(l.owner, d.owner), '') AS owner,
    nullif(coalesce(l.leased_until, d.leased_until), {never}) AS leased_until,
    nullif(d.error_code, '') AS error_code,
    nullif(d.error_message, '') AS error_message,
    m.created_at,
    NULL AS sent_at
FROM {delivery} d
JOIN {outbox} m ON m.position = d.position
{sending_lane}
WHERE NOT EXISTS (SELECT 1 FROM {receipt} r WHERE r.position = d.position)
UNION ALL
SELECT m.position, m.id, m.queue, m.topic, m.type, m.ordering_key,
    CASE r.outcome WHEN 'expired' THEN 'expired' ELSE 'sent' END,
    r.attempts, NULL, NULL, NULL, NULL, NULL, m.created_at, r.sent_at
FROM {receipt} r
JOIN {outbox} m ON m.position = r.position"""

# The id is a UUIDv7 made by hand, as servers before 18 have no function for it. The digest is taken as
# `postroom.encoding.digest` takes it. The loop ends: it goes round only where the message that held the
# idempotency key was removed between the two statements.
_ADD = """\
CREATE OR REPLACE FUNCTION {add}(
    topic text,
    payload jsonb,
    key text DEFAULT NULL,
    type text DEFAULT NULL,
    aggregate_type text DEFAULT NULL,
    aggregate_id text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    idempotency_key text DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    id uuid DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $postroom$
#variable_conflict use_column
DECLARE
    new_id uuid := coalesce(id, encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) PLACING
        substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
        FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid);
    body bytea := convert_to(payload::text, 'UTF8');
    body_type text := CASE WHEN payload IS NULL THEN 'application/octet-stream' ELSE 'application/json' END;
    hashed_key bigint := ('x' || left(md5(convert_to(key, 'UTF8')), 16))::bit(64)::bigint;
    later boolean := coalesce(deliver_at > statement_timestamp(), false);
    given_key text := idempotency_key;
    framed bytea := '';
    part bytea;
    fingerprint text;
    stream_mode text := ({stream_mode});
    in_stream boolean := NOT later AND stream_mode IS NOT NULL AND (stream_mode = '{by_relays}' OR expires_at IS NULL);
    sent_type text := coalesce(type, CASE WHEN in_stream AND stream_mode <> '{by_relays}' THEN topic END);
    added bigint;
    wrong record;
    holder record;
BEGIN
    PERFORM pg_current_xact_id();  -- before a position is given: see `Writer`
    SELECT field.name, length(field.value) AS characters INTO wrong
    FROM (VALUES ('topic', coalesce(topic, '')), ('type', type), ('aggregate_type', aggregate_type),
        ('aggregate_id', aggregate_id), ('key', key), ('idempotency_key', idempotency_key)) AS field (name, value)
    WHERE length(field.value) NOT BETWEEN 1 AND 255
        OR field.name IN ('topic', 'type', 'aggregate_type') AND field.value ~ '{control}'
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'postroom: ' || wrong.name || CASE WHEN wrong.characters BETWEEN 1 AND 255
                THEN ' holds a control character' ELSE ' has ' || wrong.characters || ' characters' END,
            HINT = 'Between 1 and 255 characters are allowed, and no control characters in topics and types.';
    END IF;
    IF (CASE jsonb_typeof(headers)
        WHEN 'object' THEN EXISTS (SELECT 1 FROM jsonb_each(headers) h WHERE jsonb_typeof(h.value) <> 'string')
        ELSE headers IS NOT NULL
    END) THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'postroom: headers are not a JSON object of strings',
            HINT = 'Give headers like this: jsonb_build_object(''name'', ''value'')';
    END IF;
    SELECT left(h.key, 60) AS name, CASE
        WHEN length(h.key) NOT BETWEEN 1 AND 255 THEN 'has a name of ' || length(h.key) || ' characters'
        WHEN h.key ~ '{control}' OR h.value ~ '{control}' THEN 'holds a control character'
        WHEN starts_with(lower(replace(btrim(h.key), '_', '-')), '{reserved_headers}') THEN 'is one of Postroom''s own'
    END AS problem INTO wrong FROM jsonb_each_text(headers) h ORDER BY problem LIMIT 1;
    IF wrong.problem IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'postroom: header "' || wrong.name || '" ' || wrong.problem,
            HINT = 'Names have 1 to 255 characters and do not begin with {reserved_headers}; '
                'control characters are not allowed.';
    END IF;
    IF starts_with(idempotency_key, '{reserved}') OR right(idempotency_key, 1) = ' ' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'postroom: idempotency_key begins with {reserved} or ends with a space',
            HINT = 'The former are Postroom''s own; the latter not every database tells from keys without it.';
    END IF;
    SELECT field.name, field.value INTO wrong
    FROM (VALUES ('deliver_at', deliver_at), ('expires_at', expires_at)) AS field (name, value)
    WHERE NOT (field.value >= '{earliest}' AND field.value < '{latest}') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'postroom: ' || wrong.name || ' ' || wrong.value || ' is outside the years 1000 to 9998',
            HINT = 'Leave it out for a message that never expires, or is to leave at once.';
    END IF;
    IF expires_at <= deliver_at THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'postroom: expires_at ' || expires_at || ' is not after deliver_at ' || deliver_at,
            HINT = 'The message could never leave: let it expire later.';
    END IF;
    FOREACH part IN ARRAY ARRAY[convert_to(topic, 'UTF8'), convert_to(type, 'UTF8'),
        convert_to(aggregate_type, 'UTF8'), convert_to(aggregate_id, 'UTF8'), convert_to(key, 'UTF8'),
        convert_to(body_type, 'UTF8'), body]
    LOOP
        framed := framed || coalesce(convert_to(length(part) || ':', 'UTF8') || part || ';'::bytea, '-;'::bytea);
    END LOOP;
    fingerprint := encode(sha256(framed), 'hex');
    LOOP
        WITH message AS (
            INSERT INTO {outbox} (id, topic, type, aggregate_type, aggregate_id, ordering_key, payload,
                content_type, headers, idempotency_key, digest, expires_at, streamed)
            VALUES (new_id, topic, sent_type, aggregate_type, aggregate_id, key,
                body, body_type, headers, given_key, fingerprint, expires_at, in_stream)
            ON CONFLICT DO NOTHING
            RETURNING position
        ), delivery AS (
            INSERT INTO {delivery} (state, lane, position, key_hash, size, due)
            SELECT CASE WHEN later THEN 1 ELSE 0 END, coalesce(hashed_key & {lane_mask}, {no_lane}), m.position,
                hashed_key, coalesce(length(body), 0),
                CASE WHEN later THEN deliver_at ELSE '-infinity' END
            FROM message m WHERE NOT in_stream
        )
        SELECT count(*) INTO added FROM message;
        IF added > 0 THEN
            RETURN new_id;
        END IF;
        SELECT m.id, m.digest INTO holder FROM {outbox} m WHERE m.idempotency_key = given_key;
        IF holder.digest = fingerprint THEN
            RETURN holder.id;
        ELSIF FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'unique_violation',
                MESSAGE = 'postroom: idempotency key ' || given_key || ' was used for another message, ' || holder.id,
                HINT = 'The same key must come with the same topic, type, key and payload: '
                    'use a new key for a new message.';
        ELSIF EXISTS (SELECT 1 FROM {outbox} m WHERE m.id = new_id) THEN
            RAISE EXCEPTION USING ERRCODE = 'unique_violation',
                MESSAGE = 'postroom: a message with id ' || new_id || ' is already in the outbox',
                HINT = 'Leave id out to have a new one made.';
        END IF;
    END LOOP;
END
$postroom$"""
