"""
Read and write the weights of partitions, for tools and pipelines.

The functions block, and use the caller's session. If the group's allocator uses weights, the leader applies a change at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.group.znodes.group_settings import Weights, encode_weights, parse_weights
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.topics import partitions_of
from kiel_groups.ops.zookeeper_client import Client

__all__ = [
    "change_weights",
    "check_partitions",
    "put_weights",
    "read_weights",
    "remove_weights",
]


def read_weights(client: Client, group: str) -> dict[TopicPartition, float]:
    """
    Read the weights of a group, or return an empty mapping if none are set.

    Raises:
        ProtocolError: The znode contains no weights.
    """
    return _read(client, GroupLayout(group).weights).weights


def put_weights(client: Client, group: str, weights: Weights) -> None:
    """
    Replace all weights of a group, even unreadable ones.

    Raises:
        ConfigError: There are too many, or no member of kiel-groups was ever in that group.
    """
    data = encode_weights(weights)
    while True:
        try:
            client.set(GroupLayout(group).weights, data)
        except NoNodeError:
            with suppress(NodeExistsError):  # Another client was faster; the next iteration overwrites its weights.
                _create(client, group, data)
                return
        else:
            return


def change_weights(
    client: Client, group: str, change: Callable[[dict[TopicPartition, float]], Weights]
) -> dict[TopicPartition, float]:
    """
    Compute new weights from the current weights, and set them. A concurrent change by another client is not lost.

    Args:
        client: The caller's own session.
        group: The group's name.
        change: Computes the new weights from the current weights. It is called again if another client was faster.

    Returns:
        The weights that are set now.

    Raises:
        ConfigError: There are too many, or no member of kiel-groups was ever in that group.
        ProtocolError: The znode contains no weights.
    """
    while True:
        stored = _read(client, GroupLayout(group).weights)
        weights = dict(change(stored.weights))
        data = encode_weights(weights)
        with suppress(BadVersionError, NodeExistsError, NoNodeError):
            if stored.version is None:
                _create(client, group, data)
            else:
                client.set(GroupLayout(group).weights, data, stored.version)
            return weights


def remove_weights(client: Client, group: str) -> bool:
    """Delete the weights of a group, even unreadable ones. Return whether there were any."""
    try:
        client.delete(GroupLayout(group).weights)
    except NoNodeError:
        return False
    return True


def check_partitions(client: Client, partitions: Iterable[TopicPartition]) -> None:
    """
    Check that these partitions exist in the cluster.

    Raises:
        UnknownTopicError: A topic does not exist; the text suggests a topic with a similar name.
        ConfigError: A topic lacks the partition; the text says which partitions the topic has.
    """
    numbers: dict[str, dict[int, list[int]]] = {}
    for partition in partitions:
        topic = partition.topic
        if topic not in numbers:
            numbers[topic] = partitions_of(client, topic)
        if partition.partition not in numbers[topic]:
            raise ConfigError(
                f"weights: {partition} given; topic {topic!r} has {len(numbers[topic])} partitions,"
                f" {min(numbers[topic], default=0)} to {max(numbers[topic], default=0)}"
            )


class _StoredWeights(NamedTuple):
    """The weights of a group and the version of their znode, None if there is no znode."""

    weights: dict[TopicPartition, float]
    version: int | None


def _read(client: Client, path: str) -> _StoredWeights:
    try:
        data, stat = client.get(path)
    except NoNodeError:
        return _StoredWeights({}, None)
    try:
        return _StoredWeights(parse_weights(data or b"", path), stat.version)
    except ProtocolError as error:
        raise ProtocolError(
            f"{error}; 'kiel-groups weights set --file' replaces it, 'weights remove' deletes it"
        ) from error


def _create(client: Client, group: str, data: bytes) -> None:
    layout = GroupLayout(group)
    try:
        client.create(layout.weights, data)
    except NoNodeError:
        raise ConfigError(
            f"group {group!r} has no place for weights, {layout.root}: no member of kiel-groups was ever in it"
        ) from None
