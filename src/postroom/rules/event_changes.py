"""Which changes of events break something: programs that still run, or messages that are still on their way.

Compares two AsyncAPI documents, as `postroom events export` writes them. Within one version of an event, old code reads
new messages and new code reads old ones. So a field that is always there must stay so, no type may change, and only
fields that may be missing can come and go. Anything else needs a higher version, with upcasters from the older ones.
Payloads in Avro and Protobuf are compared by the rules of their formats.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from postroom.rules.avro_changes import avro_changes
from postroom.rules.protobuf_changes import protobuf_changes

_ABOUT = frozenset({"title", "description", "default", "examples", "deprecated", "$schema", "x-message"})
"""What a schema says for people alone."""


AVRO = "Avro"
PROTOBUF = "Protobuf"


class Declared(NamedTuple):
    """An event of a document."""

    version: int
    upcasts: frozenset[int]
    """Versions from which it leads to the next."""
    payload: Mapping[str, Any]
    schema: Mapping[str, Any] | None = None
    """The payload's schema for comparisons, where its own is a text."""


def breaking_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What in the second document breaks what the first one promised, one line each. Raises `ValueError`."""
    old, new = events_of(before), events_of(now)
    found: list[str] = []
    for name, event in old.items():
        if name not in new:
            found.append(
                f"{name} is gone: programs that handle it get no more, and messages on their way get no handler"
            )
            continue
        found += [f"{name}: {change}" for change in _changes(event, new[name], before, now)]
    return found


def events_of(document: Mapping[str, Any]) -> dict[str, Declared]:
    """The events of a document, by topic and type. Raises `ValueError` if it is no such document."""
    try:
        messages = document["components"]["messages"]
        return {
            f"{given['x-postroom']['topic']} {given['name']}": Declared(
                int(given["x-postroom"]["version"]),
                frozenset(given["x-postroom"]["upcasts"]),
                given["payload"],
                given["x-postroom"].get("schema"),
            )
            for given in messages.values()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is no document of `postroom events export`: {error} is missing or wrong") from None


def _changes(old: Declared, new: Declared, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    if new.version < old.version:
        yield f"the version went back from {old.version} to {new.version}"
    elif new.version == old.version:
        yield from (f"{change} (raise the version)" for change in _differences(old, new, before, now))
    else:
        for step in range(old.version, new.version):
            if step not in new.upcasts:
                yield f"no upcaster leads from version {step} to {step + 1}"


def _differences(old: Declared, new: Declared, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    was, is_now = _format(old.payload), _format(new.payload)
    if was != is_now:
        yield f"the format was {was}, and is {is_now}: older programs cannot read it"
    elif was == AVRO:
        yield from avro_changes(old.payload["schema"], new.payload["schema"])
    elif was == PROTOBUF:
        yield from protobuf_changes(old.schema or {}, new.schema or {})
    else:
        yield from _Compared(before, now).differences("", old.payload, new.payload)


def _format(payload: Mapping[str, Any]) -> str:
    given = str(payload.get("schemaFormat", "")).partition(";")[0]
    return next((name for name in (AVRO, PROTOBUF) if name.lower() in given), given or "JSON")


class _Compared:
    """Two documents whose schemas are compared."""

    def __init__(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        self._before = before
        self._now = now
        self._seen: set[tuple[str, str]] = set()

    def differences(self, place: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
        """What differs between two schemas, and breaks something."""
        pair = (str(old.get("$ref")), str(new.get("$ref")))
        if "$ref" in old and "$ref" in new:
            if pair in self._seen:
                return
            self._seen.add(pair)
        old, new = _resolved(old, self._before), _resolved(new, self._now)
        at = place or "the event"
        if old.get("type") != new.get("type"):
            yield f"{at} was {_kind(old)}, and is {_kind(new)}"
            return
        yield from self._fields(place, old, new)
        if isinstance(old.get("items"), Mapping) and isinstance(new.get("items"), Mapping):
            yield from self.differences(f"{at}[]", old["items"], new["items"])
        elif old.get("items") != new.get("items"):
            yield f"the items of {at} changed"
        yield from self._alternatives(at, old, new)
        handled = {"type", "properties", "required", "items", "anyOf", "oneOf", "additionalProperties"} | _ABOUT
        for word in sorted((old.keys() | new.keys()) - handled):
            if old.get(word) != new.get(word):
                yield f"{word} of {at} was {old.get(word, 'not set')}, and is {new.get(word, 'not set')}"

    def _fields(self, place: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
        were, are = old.get("properties", {}), new.get("properties", {})
        needed, needs = {*old.get("required", ())}, {*new.get("required", ())}
        within = f"{place}." if place else ""
        for name in sorted(needed - needs):
            gone = "is gone" if name not in are else "may be missing"
            yield f"{within}{name} {gone}, and older programs need it"
        for name in sorted(needs - needed):
            yield f"{within}{name} is needed, and older messages may lack it"
        if old.get("additionalProperties") is False:
            for name in sorted(are.keys() - were.keys() - needs):
                yield f"{within}{name} is new, and older programs refuse what they do not know"
        if new.get("additionalProperties") is False:
            for name in sorted(were.keys() - are.keys() - needed):
                yield f"{within}{name} is gone, and older messages with it are refused"
        others, other = old.get("additionalProperties"), new.get("additionalProperties")
        if isinstance(others, Mapping) and isinstance(other, Mapping):
            yield from self.differences(f"{within}*", others, other)
        for name in sorted(were.keys() & are.keys()):
            yield from self.differences(f"{within}{name}", were[name], are[name])

    def _alternatives(self, at: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
        for word in ("anyOf", "oneOf"):
            were, are = old.get(word, []), new.get(word, [])
            if len(were) != len(are):
                yield f"{at} had {len(were)} alternatives, and has {len(are)}"
            for one, other in zip(were, are, strict=False):
                yield from self.differences(at, one, other)


def _resolved(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a schema refers to, if it does. Raises `ValueError` if that is not there, or refers to itself."""
    followed: set[str] = set()
    while "$ref" in schema:
        reference = str(schema["$ref"])
        found: Any = document
        for part in reference.removeprefix("#/").split("/"):
            found = found.get(part, {}) if isinstance(found, Mapping) else {}
        if not found or not isinstance(found, Mapping) or reference in followed:
            raise ValueError(f"the reference {reference} leads nowhere")
        followed.add(reference)
        schema = found
    return schema


def _kind(schema: Mapping[str, Any]) -> str:
    return str(schema.get("type", "of any type"))
