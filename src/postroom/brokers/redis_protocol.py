"""Redis's protocol, as far as publishing needs it: commands that are encoded once, and a run of answers as one read.

The client connects, logs in and keeps the connections. But it would encode every field of every message, and make a
coroutine for each answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import ConnectionError as RedisConnectionError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from redis.asyncio.connection import AbstractConnection

END = b"\r\n"
CHUNK = 256 * 1024
NIL = b"$-1"
"""The answer if there is nothing, such as no stream."""


def arguments(texts: Iterable[str]) -> str:
    """Encode arguments of a command."""
    return "".join([f"${size(text)}\r\n{text}\r\n" for text in texts])


def command(*texts: str) -> bytes:
    """Encode a command."""
    return f"*{len(texts)}\r\n{arguments(texts)}".encode()


def size(text: str) -> int:
    """The bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


async def ask(connection: AbstractConnection, commands: Sequence[bytes]) -> list[bytes]:
    """Send commands in one write, and return one answer to each. After a failure the connection is closed."""
    try:
        await connection.send_packed_command(commands, check_health=False)
        reader: asyncio.StreamReader | None = connection._reader  # noqa: SLF001 - its own parser takes answers one by one
        return await answers(reader, len(commands)) if reader and commands else []
    except BaseException:
        await connection.disconnect(nowait=True)  # late answers must not be taken for those of the next commands
        raise


async def answers(reader: asyncio.StreamReader, count: int) -> list[bytes]:
    """Read answers of one line each: a number, an error, `NIL`, or a text without line breaks, such as an entry's id.

    Raises `ConnectionError` of the client if the connection ends before the last one.
    """
    found: list[bytes] = []
    rest = b""
    while len(found) < count:
        chunk = await reader.read(CHUNK)
        if not chunk:
            raise RedisConnectionError("the server closed the connection")
        *lines, rest = (rest + chunk).split(END)
        found += [line for line in lines if not line.startswith(b"$") or line == NIL]  # else the length of the next
    return found
