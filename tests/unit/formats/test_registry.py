"""The registry's client: it asks once, says what is wrong, and tells no secret."""

from __future__ import annotations

import base64
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from postroom.errors import DriverMissing, InvalidSetting, RegistryUnavailable, UnknownSchema
from postroom.formats import registry as module
from postroom.formats.registry import RegisteredSchema, SchemaRegistry
from tests.services.schema_registry import Registry, running

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = '{"type":"record","name":"Order","fields":[]}'


@pytest.fixture
def server() -> Iterator[Registry]:
    with running() as registry:
        yield registry


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_schema_is_registered_and_looked_up_once(server: Registry) -> None:
    registry = SchemaRegistry(server.url)
    assert [registry.id_of("a/b-value", "AVRO", TEXT) for _ in range(3)] == [1, 1, 1]
    assert registry.schema(1).text == TEXT
    assert server.requests == ["POST /subjects/a%2Fb-value/versions"]
    other = SchemaRegistry(server.url, register=False)
    assert other.schema(1) == other.schema(1) == RegisteredSchema(1, "AVRO", TEXT)
    assert other.latest("a/b-value") == RegisteredSchema(1, "AVRO", TEXT)
    assert other.id_of("a/b-value", "AVRO", TEXT) == 1
    assert server.requests[1:] == [
        "GET /schemas/ids/1",
        "GET /subjects/a%2Fb-value/versions/latest",
        "POST /subjects/a%2Fb-value",
    ]


def test_credentials_are_sent_and_never_told(server: Registry) -> None:
    server.login = f"Basic {base64.b64encode(b'ann:s3cret/').decode()}"
    host = server.url.removeprefix("http://")
    for registry in (
        SchemaRegistry(f"http://ann:s3cret%2F@{host}/"),
        SchemaRegistry(server.url, auth=("ann", "s3cret/")),
    ):
        assert registry.id_of("s", "AVRO", TEXT) == 1
        assert repr(registry) == f"SchemaRegistry('{server.url}')"
    wrong = SchemaRegistry(f"http://ann:wr0ng@{host}")
    with pytest.raises(RegistryUnavailable, match="answered 401: check the user") as raised:
        wrong.schema(1)
    assert "wr0ng" not in str(raised.value) + repr(raised.value.__cause__) + repr(raised.value.__context__)
    server.login = "Bearer t0ken"
    assert SchemaRegistry(server.url, token="t0ken").schema(1).id == 1  # noqa: S106 - made up


def test_a_registry_that_is_away_is_asked_again_after_a_pause(server: Registry) -> None:
    clock = Clock()
    registry = SchemaRegistry(server.url, pause=10, clock=clock)
    server.status = 503
    for _ in range(3):
        with pytest.raises(RegistryUnavailable, match=f"{server.url} answered 503"):
            registry.id_of("s", "AVRO", TEXT)
        assert registry.knows(7)  # that it cannot be had
    assert len(server.requests) == 1
    server.status = None
    clock.now = 10
    assert not registry.knows(7)
    assert registry.id_of("s", "AVRO", TEXT) == 1


def test_an_unknown_id_and_a_refused_schema_are_remembered_for_a_while(
    server: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_REFUSED", 2)
    clock = Clock()
    registry = SchemaRegistry(server.url, pause=10, clock=clock)
    for number in (7, 8, 9, 9):
        with pytest.raises(UnknownSchema):
            registry.schema(number)
    assert len(server.requests) == 3
    server.incompatible.add("s")
    registry.id_of("s", "AVRO", TEXT)
    for _ in range(2):
        with pytest.raises(InvalidSetting, match="refuses the schema: Schema being registered is incompatible"):
            registry.id_of("s", "AVRO", TEXT.replace("Order", "Other"))
    with pytest.raises(InvalidSetting, match="the schema of gone is not registered, and register=False"):
        SchemaRegistry(server.url, register=False).id_of("gone", "AVRO", TEXT)
    assert len(server.requests) == 6
    clock.now = 10
    server.incompatible.clear()
    assert registry.id_of("s", "AVRO", TEXT.replace("Order", "Other")) == 2


def test_what_the_registry_fails_at_stops_no_other_schema(server: Registry) -> None:
    registry = SchemaRegistry(server.url, pause=10, clock=Clock())
    server.answer("POST", "/subjects/line/versions", {"schema": TEXT})
    reference = {"name": "Line", "subject": "line", "version": 1}
    server.answer("POST", "/subjects/order/versions", {"schema": TEXT + " ", "references": [reference]})
    server.status = 500
    for _ in range(2):
        with pytest.raises(RegistryUnavailable, match="answered 500"):
            registry.schema(1)
    assert len(server.requests) == 1
    server.status = None
    used = registry.schema(2).references[0]
    assert not registry.knows(2)  # but without what it uses
    assert registry.referenced(used).text == TEXT
    assert registry.knows(2)


def test_an_answer_that_is_no_registrys_is_not_asked_for_again(
    server: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = SchemaRegistry(server.url, pause=10, clock=Clock())
    monkeypatch.setattr(server, "answer", lambda *_: (200, {}))
    for _ in range(2):
        with pytest.raises(RegistryUnavailable, match="what a schema registry does not"):
            registry.schema(1)
        assert registry.knows(2)  # that it cannot be had
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "answer", "text"),
    [
        (200, "no JSON", "is no schema registry"),
        (200, '"text"', "is no schema registry"),
        (200, "{}", "what a schema registry does not"),
        (200, '{"schema": "x", "references": [1]}', "what a schema registry does not"),
        (404, "<html>", "answered 404: check the URL"),
        (302, "", "answered 302"),
    ],
)
def test_what_is_no_registry_is_no_registry(
    monkeypatch: pytest.MonkeyPatch, status: int, answer: str, text: str
) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, text=answer, headers={"location": "http://x"}))
    client = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **given: client(**{**given, "transport": transport}))
    with pytest.raises(RegistryUnavailable, match=text):
        SchemaRegistry("https://registry").schema(1)


def test_a_monster_and_a_server_that_is_not_there_are_unavailable(
    server: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    with pytest.raises(RegistryUnavailable, match="more than 10 bytes"):
        SchemaRegistry(server.url).id_of("s", "AVRO", "no schema")
    with pytest.raises(RegistryUnavailable, match=r"does not answer \(ConnectError\)"):
        SchemaRegistry("http://127.0.0.1:1").schema(1)


def test_an_answer_that_comes_byte_by_byte_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def trickle() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                while not is_over.wait(0.02):
                    connection.sendall(b"x")

        is_over = threading.Event()
        server = threading.Thread(target=trickle)
        server.start()
        try:
            with pytest.raises(RegistryUnavailable, match="does not answer"):
                SchemaRegistry(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=0.2).schema(1)
        finally:
            is_over.set()
            server.join()


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("registry:8081", {}, "write it as https://host:port"),
        ("ftp://user:s3cret@registry", {}, "write it as https://host:port"),
        ("http://user:s3cret@registry:port", {}, "write it as https://host:port"),
        ("http://registry?a=b", {}, "write it as https://host:port"),
        ("http://u:p@registry", {"token": "t"}, "has a user and a token"),
        ("http://registry", {"token": "s3cret\n"}, "token of the schema registry has a space, a line's end"),
        ("http://registry", {"timeout": 0}, "timeout of the schema registry is 0"),
        ("http://registry", {"ca": "ca.pem"}, "which is not encrypted"),
        ("https://registry", {"ca": "no/such.pem"}, "cannot be loaded: FileNotFoundError"),
    ],
)
def test_a_wrong_setting_is_refused(url: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidSetting, match=text) as raised:
        SchemaRegistry(url, **options)
    assert "s3cret" not in str(raised.value)


def test_an_address_with_colons_keeps_its_brackets() -> None:
    assert SchemaRegistry("https://[::1]:8081/base/").name == "https://[::1]:8081/base"


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import postroom.formats

    monkeypatch.setitem(postroom.formats._HOMES, "AvroSerializer", ("no_such_library", "avro"))
    with pytest.raises(DriverMissing, match=r"AvroSerializer needs no_such_library: pip install 'postroom\[avro\]'"):
        _ = postroom.formats.AvroSerializer
    with pytest.raises(AttributeError):
        _ = postroom.formats.Other
    assert "SchemaRegistry" in dir(postroom.formats)
