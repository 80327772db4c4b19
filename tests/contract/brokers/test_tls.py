"""TLS by URL: a server's certificate is checked, against the authorities that the URL names."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from contextlib import asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING

import pytest

from postroom import Message
from postroom.brokers.http import HttpBroker
from postroom.brokers.nats import NatsBroker
from postroom.brokers.port import Accepted, Outcome, Unreached
from postroom.brokers.rabbitmq import RabbitBroker
from postroom.brokers.redis import RedisBroker
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.sources.rabbitmq import RabbitSource
from postroom.sources.urls import open_source
from tests.services.databases import need
from tests.services.nats import Nats
from tests.services.rabbitmq import RabbitMQ
from tests.services.redis import Redis

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from postroom.brokers.port import Broker


class TlsRedis(Redis):
    def __init__(self, certificate: Path, key: Path) -> None:
        super().__init__()
        self._files = ("--tls-cert-file", certificate, "--tls-key-file", key, "--tls-auth-clients", "no")

    def command(self) -> list[str | Path]:
        plain = super().command()
        plain[plain.index("--port")] = "--tls-port"
        return [*plain, *self._files, "--port", "0"]

    def ping(self) -> None:
        ssl.get_server_certificate(("127.0.0.1", self.port))


class TlsNats(Nats):
    def __init__(self, certificate: Path, key: Path) -> None:
        super().__init__()
        self._files = ("--tls", "--tlscert", certificate, "--tlskey", key)

    def command(self) -> list[str | Path]:
        return [*super().command(), *self._files]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("NOT TESTED: TLS: there is no openssl")
    directory = tmp_path_factory.mktemp("tls")
    directory.chmod(0o755)
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=shop", "-days", "2"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate), "-keyout", str(key)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


@pytest.fixture(scope="module")
def redis_place(files: tuple[Path, Path]) -> Iterator[str]:
    with closing(TlsRedis(*files)) as server:
        yield f"127.0.0.1:{need(TlsRedis, server).port}"


@pytest.fixture(scope="module")
def nats_place(files: tuple[Path, Path]) -> Iterator[str]:
    with closing(TlsNats(*files)) as server:
        yield f"127.0.0.1:{need(TlsNats, server).port}"


async def published(broker: Broker) -> Outcome:
    try:
        [outcome] = await broker.publish([Message.new("orders", "a")], 10.0)
    except BrokerUnavailable as error:
        return Unreached(str(error))
    finally:
        await broker.close()
    return outcome


def is_about_the_certificate(outcome: Outcome) -> bool:
    return isinstance(outcome, Unreached) and "certificate" in outcome.reason.lower()


async def test_redis(redis_place: str, files: tuple[Path, Path]) -> None:
    url = f"rediss://{redis_place}?declare=true"
    assert isinstance(await published(RedisBroker(f"{url}&ca={files[0]}")), Accepted)
    assert is_about_the_certificate(await published(RedisBroker(url)))


async def test_nats(nats_place: str, files: tuple[Path, Path]) -> None:
    url = f"nats+tls://{nats_place}?declare=true&stream=S&subjects=orders"
    assert isinstance(await published(NatsBroker(f"{url}&ca={files[0]}")), Accepted)
    assert is_about_the_certificate(await published(NatsBroker(url)))


@asynccontextmanager
async def encrypted(files: tuple[Path, Path], port: int) -> AsyncIterator[int]:
    """A port that speaks TLS, and passes on what it is told to another one."""
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", port)
        tasks.update(asyncio.create_task(copy(*ends)) for ends in ((reader, there[1]), (there[0], writer)))

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*files)
    async with await asyncio.start_server(join, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*tasks)


async def test_rabbitmq_sending_and_receiving(files: tuple[Path, Path]) -> None:
    async with encrypted(files, need(RabbitMQ).port) as port:
        url = f"amqps://127.0.0.1:{port}?declare=true"
        assert isinstance(await published(RabbitBroker(f"{url}&ca={files[0]}")), Accepted)
        assert is_about_the_certificate(await published(RabbitBroker(url)))
        source = RabbitSource(f"{url}&ca={files[0]}", "shop", ["orders"])
        [received] = await source.receive(1, 10.0)
        await source.acknowledge([received])
        await source.close()
        stranger = RabbitSource(url, "shop", ["orders"])
        with pytest.raises(BrokerUnavailable, match="certificate"):
            await stranger.receive(1, 10.0)
        await stranger.close()


@pytest.mark.parametrize("scheme", ["amqps", "nats+tls", "kafka+ssl", "rediss"])
def test_a_file_that_is_none_is_refused_when_receiving_too(scheme: str) -> None:
    with pytest.raises(InvalidSetting, match=r"/nowhere\.pem"):
        open_source(f"{scheme}://127.0.0.1?ca=/nowhere.pem", "shop", ["orders"])


def test_credentials_that_are_not_there_are_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"/nowhere\.creds does not exist"):
        open_source("nats://127.0.0.1?credentials=/nowhere.creds", "shop", ["orders"])


@asynccontextmanager
async def receiver(files: tuple[Path, Path]) -> AsyncIterator[int]:
    """Answers whatever it is sent."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*files)
    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


async def test_http(files: tuple[Path, Path]) -> None:
    async with receiver(files) as port:
        url = f"https://127.0.0.1:{port}/?postroom.private=true"
        assert await published(HttpBroker(f"{url}&postroom.ca={files[0]}")) == Accepted("204")
        assert is_about_the_certificate(await published(HttpBroker(url)))
