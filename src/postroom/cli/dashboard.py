"""``postroom dashboard``: see and act in a browser."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from postroom.cli import collect_as_usual
from postroom.cli.options import Database, Json, LogFormat, LogLevel, Schema, TablePrefix
from postroom.cli.output import print_json, print_text
from postroom.errors import DriverMissing, InvalidSetting

if TYPE_CHECKING:
    from postroom.settings import Settings

PORT = 8800
STOPPING_SECONDS = 3
"""For requests that are under way when it stops; pages that listen for changes would never end."""


Host = Annotated[str, typer.Option(metavar="HOST", help="Address to listen on; 0.0.0.0 for all, behind TLS.")]
Port = Annotated[int, typer.Option(min=0, max=65_535, metavar="PORT", help="Port; 0 for any.")]
Token = Annotated[
    str | None,
    typer.Option(
        metavar="TOKEN",
        help="What people log in with. Others on this machine may see it: better set POSTROOM_DASHBOARD_TOKEN. "
        "Without one, a token is made and printed.",
    ),
]
TokenFile = Annotated[Path | None, typer.Option("--token-file", metavar="PATH", help="A file with the token.")]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Nobody may change anything.")]
RootPath = Annotated[
    str, typer.Option("--root-path", metavar="PATH", help="Prefix that a proxy leaves in the path, as in /postroom.")
]
TraceLink = Annotated[
    str | None, typer.Option("--trace-link", metavar="URL", help="Where traces are: a URL with {trace_id} in it.")
]


def dashboard(  # noqa: PLR0913, PLR0917 - each is an option
    host: Host = "127.0.0.1",
    port: Port = PORT,
    token: Token = None,
    token_file: TokenFile = None,
    read_only: ReadOnly = False,
    root_path: RootPath = "",
    trace_link: TraceLink = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Serve the dashboard until Ctrl-C."""
    try:
        import uvicorn
        from starlette.applications import Starlette
        from starlette.routing import Mount

        from postroom.web.dashboard import Dashboard
    except ModuleNotFoundError as error:
        raise DriverMissing(f"the dashboard needs {error.name}: pip install 'postroom[dashboard]'") from None
    from postroom.cli.telemetry import telemetry
    from postroom.settings import Settings

    settings = Settings.load(database=database, log_level=log_level, log_format=log_format)
    telemetry(settings)
    chosen, made = _token(token, token_file, settings)
    app = Dashboard(
        database, token=chosen, read_only=read_only, trace_link=trace_link, schema=schema, table_prefix=table_prefix
    )
    listening = _listen(host, port)
    prefix = f"/{root_path.strip('/')}" if root_path.strip("/") else ""
    where = f"http://{_shown(host)}:{listening.getsockname()[1]}{prefix}/"
    _tell(where, chosen if made else None, as_json=as_json)
    config = uvicorn.Config(
        Starlette(routes=[Mount(prefix, app)]) if prefix else app,
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOPPING_SECONDS,
    )
    collect_as_usual()
    uvicorn.Server(config).run(sockets=[listening])
    asyncio.run(app.close())


def _tell(where: str, made: str | None, *, as_json: bool) -> None:
    """Say where it is, and with which token, if that was made here."""
    if as_json:
        print_json({"url": where, "token": made})
    else:
        print_text(f"the dashboard is at {where}")
        if made:
            print_text(f"token: {made}\n(made for this run; set POSTROOM_DASHBOARD_TOKEN to choose it)")
    typer.echo(nl=False)


def _token(token: str | None, file: Path | None, settings: Settings) -> tuple[str, bool]:
    """The token, and whether it was made here."""
    if token is not None and file is not None:
        raise InvalidSetting("--token and --token-file are given: choose one")
    if file is not None:
        try:
            return file.read_text(encoding="utf-8").strip(), False
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            raise InvalidSetting(f"--token-file {file} cannot be read: {reason}") from None
    given = token or settings.dashboard_token
    if given is not None:
        return given, False
    import secrets

    return secrets.token_urlsafe(32), True


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises `InvalidSetting` if it cannot."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise InvalidSetting(f"cannot listen on {host}, port {port}: {error.strerror}; give another --port") from None


def _shown(host: str) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - what to type into a browser instead
    return f"[{host}]" if ":" in host else host
