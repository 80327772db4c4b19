"""A replication connection to PostgreSQL, on which a slot's changes come as a copy. By psycopg, on asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

from postroom.errors import DriverMissing, InvalidSetting
from postroom.rules.stream.wal_places import as_text
from postroom.store.connections.opening import options_of
from postroom.store.connections.urls import with_driver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from psycopg.pq.abc import PGconn, PGresult

TIME_LIMIT = 10.0
"""Seconds for the server to answer."""
_COPY_DONE = -1
UNDEFINED = "42704"
_BEYOND_REPAIR = {UNDEFINED, "55000"}
"""A publication that was missing when a row was written, on servers before 18; a slot that was invalidated."""


def _id_maker() -> Callable[[bytes], UUID]:
    """What makes an id of its bytes: asyncpg has a quick way."""
    try:
        from asyncpg.pgproto import pgproto
    except ImportError:
        return lambda data: UUID(bytes=data)
    made: Callable[[bytes], UUID] = pgproto.UUID
    return made


id_of = _id_maker()


class StreamBroken(Exception):
    """The connection ended, or the server refused to go on."""

    def __init__(self, reason: str, code: str = "") -> None:
        super().__init__(reason)
        self.is_beyond_repair = code in _BEYOND_REPAIR
        """The slot will never show what comes next: it must be made anew."""


class ReplicationConnection:
    """Reads one slot. Used by one task at a time; what cannot be sent at once waits for the socket."""

    def __init__(self, connection: PGconn) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._closed = False

    @classmethod
    async def open(cls, url: str) -> ReplicationConnection:
        """Connect. Raises `StreamBroken`; `DriverMissing` without psycopg."""
        try:
            import psycopg
        except ImportError:
            raise DriverMissing(
                "reading the write-ahead log needs psycopg: pip install 'postroom[postgresql]'"
            ) from None
        try:
            async with asyncio.timeout(TIME_LIMIT):
                connection = await psycopg.AsyncConnection.connect(
                    **_options(url), replication="database", autocommit=True
                )
        except (psycopg.Error, OSError, TimeoutError) as error:
            raise StreamBroken(_said(error)) from error
        # From here on libpq alone is used; the object must live as long as its connection.
        opened = cls(connection.pgconn)
        opened._keep = connection
        return opened

    _keep: object = None

    async def start(self, slot: str, publication: str, place: int) -> None:
        """Begin to receive from this place on, or from where the slot is if that is further. Raises `StreamBroken`."""
        from psycopg.pq import ExecStatus

        command = (
            f'START_REPLICATION SLOT "{slot}" LOGICAL {as_text(place)} '
            f"(proto_version '1', publication_names '\"{publication}\"', binary 'true', messages 'true')"
        )
        self._connection.send_query(command.encode())
        await self._flush()
        try:
            async with asyncio.timeout(TIME_LIMIT):
                while self._connection.is_busy():
                    await self._more()
        except TimeoutError as error:
            raise StreamBroken("the server does not begin to send") from error
        result = self._connection.get_result()
        if result is None or result.status != ExecStatus.COPY_BOTH:
            raise _refused(result)

    async def receive(self, most: int, most_bytes: int) -> Sequence[bytes]:
        """All that has come, up to a limit: at least one piece. Raises `StreamBroken`."""
        pieces = self._received(most, most_bytes)
        while not pieces:
            await self._more()
            pieces = self._received(most, most_bytes)
        # What is still in the socket comes along: libpq takes little at a time.
        while len(pieces) < most and (more := self._at_once(most - len(pieces), most_bytes)):
            pieces += more
        return pieces

    def _at_once(self, most: int, most_bytes: int) -> list[bytes]:
        self._consume()
        return self._received(most, most_bytes)

    def _received(self, most: int, most_bytes: int) -> list[bytes]:
        pieces: list[bytes] = []
        copied, total = self._connection.get_copy_data, 0
        while len(pieces) < most and total < most_bytes:
            size, data = copied(1)
            if size == 0:
                break
            if size == _COPY_DONE:
                raise _refused(self._connection.get_result())
            if size < 0:
                raise StreamBroken(_message(self._connection.error_message))
            pieces.append(bytes(data))
            total += size
        return pieces

    async def send(self, data: bytes) -> None:
        """Send a piece of the copy to the server. Raises `StreamBroken`."""
        try:
            self._connection.put_copy_data(data)
        except Exception as error:
            raise StreamBroken(_said(error)) from error
        await self._flush()

    async def _flush(self) -> None:
        try:
            while self._connection.flush():
                writable = asyncio.Event()
                self._loop.add_writer(self._connection.socket, writable.set)
                try:
                    await asyncio.wait_for(writable.wait(), TIME_LIMIT)
                finally:
                    self._loop.remove_writer(self._connection.socket)
                self._consume()
        except StreamBroken:
            raise
        except Exception as error:
            raise StreamBroken(_said(error)) from error

    async def _more(self) -> None:
        """Wait until something has come."""
        readable = asyncio.Event()
        self._loop.add_reader(self._connection.socket, readable.set)
        try:
            await readable.wait()
        finally:  # else the loop would turn as long as nobody reads
            self._loop.remove_reader(self._connection.socket)
        self._consume()

    def _consume(self) -> None:
        try:
            self._connection.consume_input()
        except Exception as error:
            raise StreamBroken(_said(error)) from error

    def close(self) -> None:
        """Close it at once: an orderly end could wait for a server that is gone."""
        if not self._closed:
            self._closed = True
            self._connection.finish()


def _options(url: str) -> dict[str, Any]:
    """The URL as psycopg's arguments, whichever driver it names."""
    resolved = with_driver(url, asynchronous=True)
    if resolved.dialect != "postgresql":
        raise InvalidSetting(f"cdc reads PostgreSQL's write-ahead log, and this is {resolved.dialect}")
    return dict(options_of(resolved._replace(drivername="postgresql+psycopg")).named)


def _refused(result: PGresult | None) -> StreamBroken:
    from psycopg.pq import DiagnosticField

    if result is None:
        return StreamBroken("the server ended the copy")
    code = result.error_field(DiagnosticField.SQLSTATE) or b""
    return StreamBroken(_message(result.error_message), code.decode())


def _said(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _message(said: bytes) -> str:
    return " ".join(said.decode(errors="replace").split()) or "the connection ended"
