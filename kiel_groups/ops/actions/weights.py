"""
Read and write the weights of partitions, for tools and pipelines.

The functions block, and use the caller's session. The leader notices a change at once, and plans again if the group's
allocator uses weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.group.znodes.group_settings import Weights, encode_weights, parse_weights
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.topics import partitions_of
from kiel_groups.ops.zookeeper_client import Client
from kiel_groups.wording import own_command


def read_weights(client: Client, group: str) -> Mapping[TopicPartition, float]:
    """
    Return the weights of a group, or an empty mapping if no weights are set.

    Raises:
        ProtocolError: The weights cannot be read.
    """
    return plan_weights(client, group, lambda before: before).before


@dataclass(frozen=True, slots=True)
class WeightsChange:
    """
    A change of the weights of a group.

    ``version`` is the version of the znode of the present weights, or None if there is no znode. ``is_readable`` is
    False if the present weights cannot be read. Then ``before`` is empty.
    """

    group: str
    before: Mapping[TopicPartition, float]
    after: Mapping[TopicPartition, float]
    version: int | None
    is_readable: bool = True

    @property
    def changes_nothing(self) -> bool:
        return self.is_readable and self.before == self.after and (bool(self.after) or self.version is None)

    def apply(self, client: Client) -> bool:
        """
        Write the new weights, or delete the znode if no weights are left.

        Returns:
            Whether the new weights are stored. False means that another client has changed the weights meanwhile, and
            that this method has written nothing.

        Raises:
            ConfigError: The weights do not fit into a znode, or no member of kiel-groups was ever in the group.
        """
        if self.changes_nothing:
            return True
        data, path = encode_weights(self.after), GroupLayout(self.group).weights
        with suppress(BadVersionError, NodeExistsError, NoNodeError):
            if self.version is None:
                _create(client, self.group, data)
            elif self.after:
                client.set(path, data, self.version)
            else:
                client.delete(path, self.version)
            return True
        return False


def plan_weights(
    client: Client,
    group: str,
    change: Callable[[dict[TopicPartition, float]], Weights],
    *,
    replaces: bool = False,
) -> WeightsChange:
    """
    Read the current weights, and return the change to new weights.

    Args:
        client: The caller's own session.
        group: The group's name.
        change: Computes the new weights from the current weights.
        replaces: Whether ``change`` replaces all weights, so that the current weights need not be readable.

    Raises:
        ProtocolError: The current weights cannot be read, and ``replaces`` is False.
    """
    path = GroupLayout(group).weights
    try:
        data, stat = client.get(path)
    except NoNodeError:
        return WeightsChange(group, {}, dict(change({})), None)
    try:
        before = parse_weights(data or b"", path)
    except ProtocolError as error:
        if replaces:
            return WeightsChange(group, {}, dict(change({})), stat.version, is_readable=False)
        raise ProtocolError(
            f"{error}; {own_command('weights', 'set', group, '--file', 'FILE')} replaces it,"
            f" {own_command('weights', 'remove', group)} deletes it"
        ) from error
    return WeightsChange(group, before, dict(change(dict(before))), stat.version)


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


def _create(client: Client, group: str, data: bytes) -> None:
    layout = GroupLayout(group)
    try:
        client.create(layout.weights, data)
    except NoNodeError:
        raise ConfigError(
            f"group {group!r} has no place for weights, {layout.root}: no member of kiel-groups was ever in it"
        ) from None
