"""The frames of a message, as the library reads them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import body, commands, frame, header

from postroom.brokers.rabbitmq_frames import PUBLISHING, CommonFrames, Outgoing

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
NAMES = TEXT.filter(lambda name: 0 < len(name.encode()) <= 128)
FRAME_MAX = 4096


def read(data: bytes) -> list[Any]:
    """All frames in the data, which must be on the channel for publishing."""
    found = []
    while data:
        size, channel, one = frame.unmarshal(data)
        assert channel == PUBLISHING
        found.append(one)
        data = data[size:]
    return found


@given(
    common=st.dictionaries(NAMES, TEXT, max_size=3),
    own=st.dictionaries(NAMES, TEXT, max_size=3),
    kind=st.none() | st.text("abc/+;", max_size=30),
    topic=TEXT,
    size=st.sampled_from([0, 1, FRAME_MAX - 8, FRAME_MAX - 7, 3 * FRAME_MAX]),
)
def test_B_1_frames_hold_the_message(
    common: dict[str, str], own: dict[str, str], kind: str | None, topic: str, size: int
) -> None:
    headers = common if kind is None else {**common, "content-type": kind}
    shared = CommonFrames("events", topic, dict(headers))
    payload = bytes(size)
    content = shared.content("id-1", list(own.items()), size)
    pieces = list(Outgoing(0, "id-1", topic, shared.publish, content, payload).frames(FRAME_MAX))
    publish, properties, *bodies = read(b"".join(pieces))
    assert isinstance(publish, commands.Basic.Publish)
    assert (publish.exchange, publish.routing_key, publish.mandatory) == ("events", topic, True)
    assert isinstance(properties, header.ContentHeader)
    assert properties.body_size == size
    found = properties.properties
    assert (found.content_type or None, found.message_id, found.delivery_mode) == (kind or None, "id-1", 2)
    assert dict(found.headers or {}) == {**common, **own}
    assert all(isinstance(one, body.ContentBody) and len(one.value) <= FRAME_MAX - 8 for one in bodies)
    assert b"".join(one.value for one in bodies) == payload


def test_a_name_that_is_too_long_raises_an_error() -> None:
    with pytest.raises(OverflowError):
        CommonFrames("", "t", {}).content("id-1", [("n" * 256, "v")], 0)
