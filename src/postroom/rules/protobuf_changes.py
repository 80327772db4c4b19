"""Which changes of a Protobuf message break something. Fields are known by their numbers, and may come and go."""

from collections.abc import Iterator, Mapping
from typing import Any


def protobuf_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """What in the second schema breaks programs or messages of the first, as `postroom events export` writes both."""
    root = str(old.get("message"))
    if root != new.get("message"):
        yield f"the message was {root}, and is {new.get('message')}"
        return
    were, are = old["messages"], new["messages"]
    for name in sorted(were.keys() & are.keys()):
        place = "" if name == root else f"{name}."
        yield from _fields(place, were[name], are[name])
    for name in sorted(old["enums"].keys() & new["enums"].keys()):
        was, now = old["enums"][name], new["enums"][name]
        for value in sorted(was.keys() & now.keys()):
            if was[value] != now[value]:
                yield f"{name}.{value} was {was[value]}, and is {now[value]}"


def _fields(place: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    numbers = {field["name"]: number for number, field in new.items()}
    for number, was in old.items():
        name, now = was["name"], new.get(number)
        if now is not None and was["type"] != now["type"]:
            yield f"{place}{name} (number {number}) was {was['type']}, and is {now['type']}"
        elif now is None and was["type"].startswith("required "):
            yield f"{place}{name} is gone, and older programs require it"
        elif now is None and name in numbers:
            yield f"{place}{name} was number {number}, and is {numbers[name]}"
    for number in new.keys() - old.keys():
        if new[number]["type"].startswith("required "):
            yield f"{place}{new[number]['name']} is required, and older messages may lack it"
