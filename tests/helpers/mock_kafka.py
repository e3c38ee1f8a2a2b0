"""A cluster of modern Kafka in this process: librdkafka's own mock, whose answers a test can replace by errors."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka

__all__ = ["ADD_PARTITIONS", "FETCH", "PRODUCE", "MockKafka", "mock_kafka"]

#: The API keys of requests that write and read records, and that add partitions to a transaction.
PRODUCE, FETCH, ADD_PARTITIONS = 0, 1, 24
_PRODUCER = 0


def _library() -> ctypes.CDLL:
    """Return the library that confluent-kafka has loaded, with the types of the functions that return pointers."""
    (path,) = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs").glob("librdkafka*")
    library = ctypes.CDLL(str(path))
    for name in ("rd_kafka_new", "rd_kafka_conf_new", "rd_kafka_mock_cluster_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


class MockKafka:
    """
    A mock cluster of one broker. It creates a topic when a producer asks for it.

    Args:
        library: The library.
        cluster: The library's pointer to the cluster.
    """

    def __init__(self, library: ctypes.CDLL, cluster: int) -> None:
        self._library = library
        self._cluster = ctypes.c_void_p(cluster)
        self.servers: str = library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def refuse(self, api_key: int, *codes: int) -> None:
        """Answer the next requests of a kind with these error codes."""
        errors = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_short(api_key), ctypes.c_size_t(len(codes)), errors
        )

    def accept(self, api_key: int) -> None:
        """Forget the error codes that were not answered yet."""
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, ctypes.c_short(api_key))

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)

    def elect(self, topic: str, partition: int, broker: int = 1) -> None:
        """Elect the broker as the leader of a partition again, in a later epoch. -1 leaves it without a leader."""
        self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, broker)

    def lose(self, topic: str) -> None:
        """Answer requests for the metadata of a topic as if it were deleted."""
        self._library.rd_kafka_mock_topic_set_error(
            self._cluster, topic.encode(), confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
        )

    def delay(self, milliseconds: int) -> None:
        """Answer each request after this time, as a frozen broker that continues."""
        self._library.rd_kafka_mock_broker_set_rtt(self._cluster, 1, milliseconds)

    def set_down(self, *, down: bool) -> None:
        """Refuse connections, or accept them again."""
        change = self._library.rd_kafka_mock_broker_set_down if down else self._library.rd_kafka_mock_broker_set_up
        change(self._cluster, 1)


@contextmanager
def mock_kafka() -> Iterator[MockKafka]:
    """Run a mock cluster."""
    library = _library()
    error = ctypes.create_string_buffer(512)
    config = ctypes.c_void_p(library.rd_kafka_conf_new())
    # A client without servers warns.
    library.rd_kafka_conf_set(config, b"log_level", b"0", error, ctypes.c_size_t(len(error)))
    client = library.rd_kafka_new(_PRODUCER, config, error, ctypes.c_size_t(len(error)))
    assert client, error.value
    handle = ctypes.c_void_p(client)
    cluster = library.rd_kafka_mock_cluster_new(handle, 1)
    try:
        yield MockKafka(library, cluster)
    finally:
        library.rd_kafka_mock_cluster_destroy(ctypes.c_void_p(cluster))
        library.rd_kafka_destroy(handle)
