"""A process that is a mock Kafka cluster: SIGUSR1 takes its brokers down, SIGUSR2 brings them back.

At SIGHUP the next request to produce is answered with the error whose number the file `error` holds.
"""

from __future__ import annotations

import ctypes
import signal
from pathlib import Path

import confluent_kafka

BROKERS = 3
PRODUCER = 0
PRODUCE = 0
REBALANCE_MS = 50
"""How long a group waits for further members before its partitions are assigned; three seconds unless told."""


def library() -> ctypes.CDLL:
    """The library that confluent-kafka brings."""
    folder = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")
    found = ctypes.CDLL(str(next(folder.glob("librdkafka*"))))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(found, name).restype = ctypes.c_void_p
    found.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return found


def main() -> None:
    """Serve until the process is ended."""
    signals = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # in the library's threads too
    kafka = library()
    error = ctypes.create_string_buffer(512)
    handle = ctypes.c_void_p(
        kafka.rd_kafka_new(PRODUCER, ctypes.c_void_p(kafka.rd_kafka_conf_new()), error, len(error))
    )
    cluster = ctypes.c_void_p(kafka.rd_kafka_mock_cluster_new(handle, BROKERS))
    kafka.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, REBALANCE_MS)
    Path("brokers").write_bytes(kafka.rd_kafka_mock_cluster_bootstraps(cluster) + b"\n")
    while True:
        given = signal.sigwait(signals)
        if given == signal.SIGHUP:
            file = Path("error")
            kafka.rd_kafka_mock_push_request_errors(cluster, PRODUCE, ctypes.c_size_t(1), int(file.read_text()))
            file.unlink()
            continue
        down = given == signal.SIGUSR1
        change = kafka.rd_kafka_mock_broker_set_down if down else kafka.rd_kafka_mock_broker_set_up
        for number in range(1, BROKERS + 1):
            change(cluster, number)


if __name__ == "__main__":
    main()
