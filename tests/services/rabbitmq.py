"""RabbitMQ, from Debian's packages."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from tests.services.packages import require_programs
from tests.services.ports import free_port
from tests.services.service import Service, Unavailable

LARGEST = 1024 * 1024
# The wrapper on PATH changes the user and shares a directory; the real script does what its environment says.
SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONTROL = Path("/usr/lib/rabbitmq/bin/rabbitmqctl")
PEERS = "cluster_formation.peer_discovery_backend = classic_config\ncluster_formation.classic_config.nodes.1"
# Erlang's name server would be started as a daemon that stays: here it is a child, and ends with the node.
BOTH = 'epmd & names=$!; "$0" & node=$!; trap "kill $node" TERM; wait $node; wait $node; kill $names'


class RabbitMQ(Service):
    """A RabbitMQ node of its own; user and password `guest`."""

    title = "RabbitMQ"

    def __init__(self, peer: RabbitMQ | None = None) -> None:
        """With a peer, which must run by then, it joins the peer's cluster when it starts."""
        super().__init__()
        self._peer = peer
        self._distribution_port = free_port()
        self._names_port: int = peer._names_port if peer else free_port()

    def require(self) -> None:
        if not SCRIPT.exists():
            require_programs("rabbitmq-server", packages=("rabbitmq-server",))
        if not SCRIPT.exists():
            raise Unavailable(f"rabbitmq-server is installed, yet there is no {SCRIPT}")

    @property
    def node(self) -> str:
        """What its peers call it."""
        return f"postroom{self.port}@localhost"

    def prepare(self) -> None:
        cookie = self.directory / ".erlang.cookie"  # peers must have the same
        cookie.write_text("postroom")
        cookie.chmod(0o400)
        (self.directory / "plugins").write_text("[].\n")
        (self.directory / "node.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            f"max_message_size = {LARGEST}\n"
            "log.console = true\nlog.file = false\n"
            "vm_memory_high_watermark.absolute = 1GB\ndisk_free_limit.absolute = 50MB\n"
            + (f"{PEERS} = {self._peer.node}\n" if self._peer else "")
        )

    def command(self) -> list[str | Path]:
        # What only the directory decides goes by way of `env`, since the environment is made before it.
        return ["/usr/bin/env", *self._variables(), "sh", "-c", BOTH, SCRIPT]

    def stop(self, *, kill: bool = False) -> None:
        """As for all, but a queue that has been declared is there again after a crash.

        The server answers before Mnesia has written it: of eight queues that were declared right before a kill, one
        was gone, with its messages. That is RabbitMQ's own matter, and no test's.
        """
        if kill:
            self.control("eval", "mnesia:sync_log().")
        super().stop(kill=kill)

    def control(self, *arguments: str) -> None:
        """Run `rabbitmqctl`."""
        command: list[str | Path] = ["/usr/bin/env", *self._variables(), CONTROL, *arguments]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def _variables(self) -> list[str]:
        directory = self.directory
        variables = {
            "HOME": directory,
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_DIST_PORT": self._distribution_port,
            "ERL_EPMD_PORT": self._names_port,
            "RABBITMQ_MNESIA_BASE": directory / "data",
            "RABBITMQ_LOG_BASE": directory / "logs",
            "RABBITMQ_ENABLED_PLUGINS_FILE": directory / "plugins",
            "RABBITMQ_PID_FILE": directory / "pid",
            "RABBITMQ_CONFIG_FILE": directory / "node.conf",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none -start_epmd false",
        }
        return [f"{name}={value}" for name, value in variables.items()]

    def ping(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"AMQP\0\0\x09\x01")
            assert connection.recv(1) == b"\1"
