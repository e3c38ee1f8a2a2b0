"""
Answers of a faulty Kafka 0.8 broker: error codes instead of results, and other addresses of brokers.

The answers have version 0, as the requests that this package sends, and keep the topics and partitions of the real
answer, except that topics lose their partitions in a Metadata answer with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kiel_groups.config import HostPort
from kiel_groups.errors import ConfigError
from kiel_groups.wire.api.fetch_v0 import FetchRequest
from kiel_groups.wire.api.list_offsets_v0 import ListOffsetsRequest
from kiel_groups.wire.api.metadata_v0 import MetadataRequest, MetadataResponse, PartitionMetadata
from kiel_groups.wire.api.offsets_v0 import OffsetCommitRequest, OffsetFetchRequest
from kiel_groups.wire.api.produce_v0 import ProduceRequest
from kiel_groups.wire.primitives import Buffer, Reader, Writer
from kiel_groups.wire.topic_arrays import read_partitions, write_partitions

__all__ = ["with_error", "with_addresses"]

_NO_OFFSET = -1


def with_error(api_key: int, payload: Buffer, code: int) -> bytes:
    """
    Replace every result of an answer by an error.

    Args:
        api_key: The request: 0 Produce, 1 Fetch, 2 ListOffsets, 3 Metadata, 8 OffsetCommit, 9 OffsetFetch.
        payload: The broker's answer, after the correlation id.
        code: The Kafka error code, an int16. In a Metadata answer, each topic gets the code and loses its partitions.

    Raises:
        ConfigError: ``api_key`` is another number, or ``code`` is not an int16.
        ProtocolError: ``payload`` is not an answer to the request.
    """
    if api_key == MetadataRequest.API_KEY:
        view = MetadataRequest().decode_response(payload)
        return _metadata(view, {}, code)
    if api_key not in _RESULTS:
        raise ConfigError(f"api_key: {api_key} given; expected one of {sorted((*_RESULTS, MetadataRequest.API_KEY))}")
    skip, least_bytes, write = _RESULTS[api_key]
    partitions = read_partitions(Reader(payload, "a broker's answer"), skip, least_bytes)
    writer = Writer()
    write_partitions(writer, dict.fromkeys(partitions, code).items(), write)
    return writer.getvalue()


def with_addresses(payload: Buffer, addresses: Mapping[HostPort, HostPort]) -> bytes:
    """
    Replace the addresses of brokers in a Metadata answer. Brokers that are not in the mapping keep their addresses.

    Raises:
        ProtocolError: ``payload`` is not a Metadata answer.
    """
    return _metadata(MetadataRequest().decode_response(payload), addresses, None)


def _metadata(view: MetadataResponse, addresses: Mapping[HostPort, HostPort], topic_error: int | None) -> bytes:
    writer = Writer()
    writer.int32(len(view.brokers))
    for broker in view.brokers:
        real = HostPort(broker.host, broker.port)
        address = addresses.get(real, real)
        writer.int32(broker.node_id)
        writer.string(address.host)
        writer.int32(address.port)
    writer.int32(len(view.topics))
    for topic in view.topics:
        writer.int16(topic.error.number if topic_error is None else topic_error)
        writer.string(topic.topic)
        partitions = topic.partitions if topic_error is None else ()
        writer.int32(len(partitions))
        for partition in partitions:
            _write_partition(writer, partition)
    return writer.getvalue()


def _write_partition(writer: Writer, partition: PartitionMetadata) -> None:
    writer.int16(partition.error.number)
    writer.int32(partition.partition)
    writer.int32(partition.leader)
    for nodes in (partition.replicas, partition.isr):
        writer.int32(len(nodes))
        for node in nodes:
            writer.int32(node)


def _skip_produced(reader: Reader) -> None:
    reader.int16()
    reader.int64()


def _write_produced(writer: Writer, code: int) -> None:
    writer.int16(code)
    writer.int64(_NO_OFFSET)


def _skip_fetched(reader: Reader) -> None:
    reader.int16()
    reader.int64()
    reader.blob()


def _write_fetched(writer: Writer, code: int) -> None:
    writer.int16(code)
    writer.int64(_NO_OFFSET)
    writer.blob(b"")


def _skip_listed(reader: Reader) -> None:
    reader.int16()
    for _ in reader.array(8):
        reader.int64()


def _write_listed(writer: Writer, code: int) -> None:
    writer.int16(code)
    writer.int32(0)


def _skip_committed(reader: Reader) -> None:
    reader.int16()


def _write_committed(writer: Writer, code: int) -> None:
    writer.int16(code)


def _skip_offset(reader: Reader) -> None:
    reader.int64()
    reader.optional_string()
    reader.int16()


def _write_offset(writer: Writer, code: int) -> None:
    writer.int64(_NO_OFFSET)
    writer.string("")
    writer.int16(code)


#: API key → for the fields after a partition's number: a function that skips them, their least size in bytes, and a
#: function that writes an error in their place.
_RESULTS: Mapping[int, tuple[Callable[[Reader], None], int, Callable[[Writer, int], None]]] = {
    ProduceRequest.API_KEY: (_skip_produced, 10, _write_produced),
    FetchRequest.API_KEY: (_skip_fetched, 14, _write_fetched),
    ListOffsetsRequest.API_KEY: (_skip_listed, 6, _write_listed),
    OffsetCommitRequest.API_KEY: (_skip_committed, 2, _write_committed),
    OffsetFetchRequest.API_KEY: (_skip_offset, 12, _write_offset),
}
