"""Forms as multipart/form-data: what is in them, whatever boundary they were sent with."""

from __future__ import annotations

import io
import string

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from werkzeug.formparser import parse_form_data

from postroom.web.idempotency.forms import field_values, without_boundary

FIELD = "idempotency_key"
ALLOWED = string.ascii_letters + string.digits + "'()+_,-./:=?"
Part = tuple[bytes, bytes]

boundaries = st.text(st.sampled_from(ALLOWED), min_size=1, max_size=70)
names = st.sampled_from([b"item", b"note", FIELD.encode()])
heads = st.one_of(
    names.map(lambda name: b'Content-Disposition: form-data; name="%b"' % name),
    st.just(b'Content-Disposition: form-data; name="f"; filename="a.txt"\r\nContent-Type: text/plain'),
)
contents = st.one_of(
    st.binary(max_size=20),
    st.lists(st.sampled_from([b"\r\n", b"--", b"\r", b"x", b"--x", b" "]), max_size=8).map(b"".join),
)
all_parts = st.lists(st.tuples(heads, contents), min_size=1, max_size=4)


def written(boundary: str, parts: list[Part]) -> bytes:
    """The form as a client writes it, with a boundary that its parts do not hold."""
    line = b"--" + boundary.encode()
    assume(not any(line in b"\r\n" + content for _, content in parts))
    return b"".join(b"%b\r\n%b\r\n\r\n%b\r\n" % (line, *part) for part in parts) + line + b"--\r\n"


def kind(boundary: str) -> str:
    return f'multipart/form-data; boundary="{boundary}"'


@given(all_parts, boundaries, boundaries)
@example([(b"a: b", b"")], "x", "xx")
def test_the_same_parts_are_the_same_whatever_boundary_they_were_sent_with(
    parts: list[Part], one: str, other: str
) -> None:
    assert without_boundary(kind(one), written(one, parts)) == without_boundary(kind(other), written(other, parts))


@given(all_parts, all_parts, boundaries, boundaries)
def test_other_parts_are_never_the_same(parts: list[Part], others: list[Part], one: str, other: str) -> None:
    assume(parts != others)
    assert without_boundary(kind(one), written(one, parts)) != without_boundary(kind(other), written(other, others))


@given(all_parts, boundaries)
def test_a_field_is_found_as_a_framework_finds_it(parts: list[Part], boundary: str) -> None:
    body = written(boundary, parts)
    environ = {
        "REQUEST_METHOD": "POST",
        "CONTENT_TYPE": kind(boundary),
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
    }
    _, form, _ = parse_form_data(environ, stream_factory=lambda *_args, **_kwargs: io.BytesIO())
    found = [value.decode("utf-8", "replace") for value in field_values(kind(boundary), body, FIELD)]
    assert found == form.getlist(FIELD)


@given(st.text(max_size=30) | boundaries.map(kind) | st.just(kind("x")), st.binary(max_size=40) | contents)
def test_whatever_comes_it_is_the_parts_or_the_bytes_as_they_are(content_type: str, body: bytes) -> None:
    assert field_values(content_type, body, FIELD) == []
    assert without_boundary(content_type, body) == body or content_type.startswith("multipart/form-data")


SENT = b'--x\r\nContent-Disposition: form-data; name="idempotency_key"\r\n\r\n7f9c\r\n--x--\r\n'


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data; boundary=x",
        "Multipart/Form-Data;BOUNDARY=x",
        'multipart/form-data; boundary="x"',
        r'multipart/form-data; boundary="\x"',
        "multipart/form-data; charset=utf-8; boundary=x;",
        'multipart/form-data; other="; boundary=y"; boundary=x',
    ],
)
def test_a_boundary_is_quoted_or_not_among_other_parameters(content_type: str) -> None:
    assert field_values(content_type, SENT, FIELD) == [b"7f9c"]
    assert without_boundary(content_type, SENT) != SENT


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        'multipart/form-data; boundary=""',
        'multipart/form-data; boundary="x',
        "multipart/form-data; boundary=x; boundary=x",
        "multipart/form-data; boundary=x y",
        "multipart/form-data; boundary=y",
        "multipart/form-data; boundary=\xe9",
        f"multipart/form-data; boundary={'x' * 201}",
        "multipart/mixed; boundary=x",
        "text/plain; boundary=x",
    ],
)
def test_without_a_boundary_a_body_is_its_bytes(content_type: str) -> None:
    assert field_values(content_type, SENT, FIELD) == []
    assert without_boundary(content_type, SENT) == SENT


@pytest.mark.parametrize(
    "body",
    [
        b"",
        SENT.removesuffix(b"--\r\n"),  # cut off
        SENT.removesuffix(b"--x--\r\n"),
        SENT + SENT,  # goes on after its end
        SENT.replace(b"\r\n", b"\n"),
        SENT.replace(b"7f9c", b"7f9c\r\n--xy\r\n"),  # a line that some take for one that parts
    ],
)
def test_a_malformed_form_is_its_bytes(body: bytes) -> None:
    assert field_values(kind("x"), body, FIELD) == []
    assert without_boundary(kind("x"), body) == body


@pytest.mark.parametrize(
    "body",
    [
        b"before\r\n" + SENT + b"after",
        SENT.replace(b"--x\r\n", b"--x \t\r\n"),
        SENT.removesuffix(b"\r\n"),
        SENT.replace(b"Content-Disposition: form-data; name=", b"X: y\r\ncontent-disposition:form-data;name="),
        SENT.replace(b'"idempotency_key"', b"idempotency_key"),
    ],
)
def test_a_form_may_be_written_in_other_ways(body: bytes) -> None:
    assert field_values(kind("x"), body, FIELD) == [b"7f9c"]
    assert without_boundary(kind("x"), body) != body


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"X: y",
        b"Content-Disposition: form-data",
        b'Content-Disposition: form-data; name="idempotency_key"; filename="a"',
        b"Content-Disposition: form-data; name=\"idempotency_key\"; filename*=utf-8''a",
        b'Content-Disposition: attachment; name="idempotency_key"',
        b'Content-Disposition: form-data; name="idempotency_key',
        b'Content-Disposition: form-data; name="idempotency_key"; name="b"',
    ],
)
def test_a_part_without_the_name_or_with_a_file_is_not_the_field(head: bytes) -> None:
    body = b"--x\r\n" + head + b"\r\n\r\n7f9c\r\n--x--\r\n"
    assert field_values(kind("x"), body, FIELD) == []


def test_a_name_may_hold_what_has_to_be_escaped() -> None:
    for name in (b"a%22b", rb"a\"b"):
        body = SENT.replace(b"idempotency_key", name)
        assert field_values(kind("x"), body, 'a"b') == [b"7f9c"]
