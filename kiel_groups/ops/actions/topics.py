"""Read, create, grow and delete topics through ZooKeeper. The functions block."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from kiel_groups.config import HostPort, check_name
from kiel_groups.errors import ConfigError, CoordinationError, NoBrokersError, ProtocolError, UnknownTopicError
from kiel_groups.group.znodes.contents import encode_object, parse_leader, parse_object, parse_topic, typed_field
from kiel_groups.group.znodes.layout import BROKER_IDS, partition_state_path, topic_path
from kiel_groups.model import TopicPartition
from kiel_groups.ops import zookeeper_client
from kiel_groups.ops.zookeeper_client import Client, broker_ids, controller_id, place_of, zookeeper
from kiel_groups.ops.zookeeper_reader import broker_addresses, list_topics, read_brokers
from kiel_groups.wording import counted, some

log = logging.getLogger(__name__)

T = TypeVar("T")

CONFIG_CHANGES = "/config/changes"
#: The znodes by which a deletion is requested, one per topic.
_DELETIONS = "/admin/delete_topics"
#: The longest name of a directory on the file systems that brokers use.
_LONGEST_FOLDER = 255

#: More partitions than a cluster of Kafka 0.8 can serve. The znode of a topic has at most 1 MiB.
_MOST_PARTITIONS = 50_000

#: How long a change may take, in seconds.
_LIMIT_S = 30.0
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class PartitionState:
    """
    The replicas, the leader and the in-sync replicas of one partition, as ids of brokers.

    ``leader`` is None if the partition has no leader. ``isr`` is empty if the in-sync replicas are unknown.
    """

    topic_partition: TopicPartition
    replicas: tuple[int, ...]
    leader: int | None
    isr: tuple[int, ...]

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True, slots=True)
class TopicState:
    """
    The state of one topic, with its ``partitions`` in ascending order.

    ``config`` has the topic's settings that override the brokers' defaults. ``config`` and ``is_being_deleted`` are
    None if the state was read from brokers. ``created`` is the creation zxid of the topic's znode, or 0 if the znode
    does not exist any more, or the state was read from brokers.
    """

    topic: str
    partitions: tuple[PartitionState, ...]
    config: Mapping[str, str] | None
    is_being_deleted: bool | None
    created: int = 0

    @property
    def leaderless(self) -> tuple[int, ...]:
        """The numbers of the partitions without a leader."""
        return tuple(each.topic_partition.partition for each in self.partitions if each.leader is None)

    @property
    def under_replicated(self) -> tuple[int, ...]:
        """The numbers of the partitions with replicas that are not in sync."""
        return tuple(each.topic_partition.partition for each in self.partitions if each.is_under_replicated)


class TopicSize(NamedTuple):
    """The number of a topic's partitions, and the largest number of replicas of a partition."""

    partitions: int
    replication: int


class LiveBroker(NamedTuple):
    """
    A live broker.

    ``address`` is None if the broker registers no listener that this process can use. ``controller`` is whether the
    broker is the controller, or None if the controller is unknown.
    """

    broker: int
    address: str | None
    controller: bool | None


class DescribedTopics(NamedTuple):
    """The states of topics, and the addresses (``brokers``) and ids (``alive``) of the live brokers."""

    states: Sequence[TopicState]
    brokers: Sequence[HostPort]
    alive: frozenset[int]


def check_topic(topic: str, partitions: int) -> None:
    """
    Check that brokers can store a topic of this name with this number of partitions.

    Raises:
        ConfigError: Kafka 0.8 does not allow the name, ``partitions`` is less than 1 or too large, or the brokers'
            directory names would be too long.
    """
    check_name(topic, "topic")
    if not 1 <= partitions <= _MOST_PARTITIONS:
        raise ConfigError(f"partitions: {partitions:,} given for topic {topic!r}; expected 1 to {_MOST_PARTITIONS:,}")
    # A broker creates a directory "topic-partition" for each replica, and fails for ever if the name is too long.
    if len(f"{topic}-{partitions - 1}") > _LONGEST_FOLDER:
        longest, many = _LONGEST_FOLDER - len(f"-{partitions - 1}"), counted(partitions, "partition", "partitions")
        raise ConfigError(
            f"topic {topic!r}: a name of {len(topic)} characters; with {many} it may have {longest}, because brokers"
            f" keep partition {partitions - 1} in a folder 'name-{partitions - 1}' and file systems allow"
            f" {_LONGEST_FOLDER} characters"
        )


def check_absent(names: Iterable[str], found: Collection[str]) -> None:
    """Check that topics of these ``names`` are not among the topics ``found``. Raise ConfigError otherwise."""
    if there := [name for name in names if name in found]:
        raise existing_topics(there)


def check_present(names: Iterable[str], found: Collection[str], place: str) -> None:
    """Check that all these topics are among the topics ``found`` at ``place``. Raise UnknownTopicError otherwise."""
    if missing := [name for name in names if name not in found]:
        raise unknown_topics(missing, found, place)


def check_growth(topic: str, present: Collection[object], partitions: int) -> None:
    if partitions <= len(present):
        raise ConfigError(
            f"topic {topic!r} has {counted(present, 'partition', 'partitions')} already;"
            f" --partitions {partitions} given, expected more"
        )
    check_topic(topic, partitions)


def check_replication(replication: int, brokers: Collection[object]) -> None:
    if not 1 <= replication <= len(brokers):
        raise ConfigError(
            f"replication: {replication} given; expected at most {len(brokers)}, the number of live brokers"
        )


def most_replicas(replicas: Iterable[Sequence[int]]) -> int:
    return max(map(len, replicas), default=0)


def existing_topics(names: Sequence[str]) -> ConfigError:
    """Return the error about topics that exist already. The text of the error names up to ten topics."""
    one = "exists already; delete it first, or choose another name; 'topics create --if-missing' accepts it"
    many = "exist already; delete them first, or choose other names; 'topics create --if-missing' accepts them"
    return ConfigError(f"{_named(names)} {one if len(names) == 1 else many}")


def unknown_topics(missing: Sequence[str], found: Collection[str], place: str) -> UnknownTopicError:
    """
    Return the error about topics that do not exist. The text of the error names up to ten topics, and suggests similar
    names.

    Args:
        missing: The names of the missing topics.
        found: The names of the existing topics.
        place: The place of the search, such as "in ZooKeeper at zk-1:2181".
    """
    near = [match for name in missing for match in get_close_matches(name, found, 1)]
    hint = f" (did you mean {some(map(repr, near))}?)" if near else ""
    return UnknownTopicError(f"{_named(missing)} {'does' if len(missing) == 1 else 'do'} not exist {place}{hint}")


def _named(names: Sequence[str]) -> str:
    return f"{'topic' if len(names) == 1 else 'topics'} {some(map(repr, names), 10)}"


class ZooKeeperTopics:
    """
    Reads and changes the topics in a ZooKeeper. Each call opens a session, and raises the errors of ``zookeeper``.

    Args:
        hosts: ``host:port,host:port/chroot``.
        timeout_s: How long to wait for ZooKeeper's first answer, in seconds.
    """

    def __init__(self, hosts: str, *, timeout_s: float = 10.0) -> None:
        self._hosts = hosts
        self._timeout_s = timeout_s

    def names(self) -> list[str]:
        """Return the names of all topics, in alphabetical order."""
        return self._with(list_topics)

    def sizes(self) -> Mapping[str, TopicSize]:
        """Return the size of each topic by the topic's name, in alphabetical order."""
        found = self._with(lambda client: {topic: partitions_of(client, topic) for topic in list_topics(client)})
        return {topic: TopicSize(len(numbers), most_replicas(numbers.values())) for topic, numbers in found.items()}

    def brokers(self) -> list[LiveBroker]:
        """Return the registered brokers, in the order of their ids."""

        def read(client: Client) -> list[LiveBroker]:
            controller, registered = controller_id(client), read_brokers(client)
            addresses = {number: registered.get(f"{BROKER_IDS}/{number}") for number in broker_ids(client)}
            return [
                LiveBroker(number, next(map(str, broker_addresses({str(number): znode})), None), number == controller)
                for number, znode in addresses.items()
                if znode is not None
            ]

        return self._with(read)

    def describe(self, names: Sequence[str]) -> DescribedTopics:
        """Return the states of topics, in the order of ``names``. Raise UnknownTopicError if a topic does not exist."""

        def read(client: Client) -> DescribedTopics:
            states, alive = read_topics(client, names), frozenset(broker_ids(client))
            return DescribedTopics(states, broker_addresses(read_brokers(client)), alive)

        return self._with(read)

    def await_brokers(self, count: int, timeout_s: float) -> None:
        """Wait until ``count`` brokers are alive, at most ``timeout_s`` seconds; a timeout raises no error."""
        zookeeper_client.await_brokers(self._hosts, count, timeout_s=timeout_s)

    def create(
        self,
        topic: str,
        partitions: int,
        replication: int = 1,
        settings: Mapping[str, str] | None = None,
        *,
        timeout_s: float = _LIMIT_S,
    ) -> None:
        """
        Create a topic and wait until every partition has a leader.

        Replicas are assigned round-robin to the brokers that are registered now. ``settings`` are the topic's own
        settings. The caller has checked the settings with ``topic_config.check_settings``.

        Raises:
            ConfigError: ``check_topic`` refuses the topic, the topic exists, ``replication`` is not between 1 and the
                number of brokers, or ``settings`` are given and the brokers are of Kafka 0.8.0.
            NoBrokersError: No broker is registered.
            CoordinationError: Some partitions have no leader after ``timeout_s`` seconds.
        """
        check_topic(topic, partitions)
        with zookeeper(self._hosts, timeout_s=self._timeout_s) as client:
            assignment = _assign(range(partitions), _brokers(client), replication)
            if settings:
                check_followed(client)
                check_absent([topic], list_topics(client))
            path, data = f"/config/topics/{topic}", encode_object({"version": 1, "config": dict(settings or {})})
            try:
                client.create(path, data, makepath=True)
            except NodeExistsError:
                # An earlier topic of that name left this znode, or the topic itself exists: then the next one fails.
                log.debug("%s exists already", path)
                if settings:
                    client.set(path, data)
            try:
                data = encode_object({"version": 1} | _partitions_field(assignment))
                client.create(topic_path(topic), data, makepath=True)
            except NodeExistsError as error:
                raise existing_topics([topic]) from error
            _await_leaders(client, topic, range(partitions), timeout_s)

    def grow(self, topic: str, partitions: int, *, timeout_s: float = _LIMIT_S) -> None:
        """
        Increase the number of a topic's partitions to ``partitions``, and wait until every partition has a leader.

        Raises:
            UnknownTopicError: The topic does not exist.
            ConfigError: The topic has at least ``partitions`` already, the name is too long for this number, or the
                topic has more replicas than there are brokers.
            NoBrokersError: No broker is registered.
            CoordinationError: Some partitions have no leader after ``timeout_s`` seconds.
        """
        with zookeeper(self._hosts, timeout_s=self._timeout_s) as client:
            before = partitions_of(client, topic)
            check_growth(topic, before, partitions)
            after = before | _assign(range(len(before), partitions), _brokers(client), len(before[0]))
            _set_assignment(client, topic, after)
            _await_leaders(client, topic, range(partitions), timeout_s)

    def delete(self, topic: str, *, timeout_s: float = _LIMIT_S) -> None:
        """
        Request the deletion of a topic, and wait until the brokers have deleted it.

        Brokers delete topics only if ``delete.topic.enable`` is set. If no broker begins the deletion in time, or the
        caller interrupts the wait, the request is withdrawn. Otherwise, a controller that starts after the setting has
        changed would delete the topic, with all its records at that time. A request of another client is not withdrawn.

        Raises:
            UnknownTopicError: The topic does not exist.
            CoordinationError: The topic still exists after ``timeout_s`` seconds.
        """
        with zookeeper(self._hosts, timeout_s=self._timeout_s) as client:
            _delete(client, topic, timeout_s)

    def _with(self, work: Callable[[Client], T]) -> T:
        with zookeeper(self._hosts, timeout_s=self._timeout_s) as client:
            return work(client)


def partitions_of(client: Client, topic: str) -> dict[int, list[int]]:
    """
    Return the replicas of each partition of a topic, by partition number.

    Raises:
        ProtocolError: The topic's znode cannot be read.
        UnknownTopicError: The topic does not exist.
    """
    path = topic_path(topic)
    try:
        data, _ = client.get(path)
    except NoNodeError as error:
        raise unknown_topics([topic], list_topics(client), f"in ZooKeeper at {place_of(client)}") from error
    parse_topic(data, path)
    partitions = typed_field(parse_object(data, path), "partitions", dict, path)
    if not all(isinstance(replicas, list) for replicas in partitions.values()):
        raise ProtocolError(f"{path}: lists of brokers were expected, found {list(partitions.values())[:5]!r:.200}")
    return {int(number): replicas for number, replicas in partitions.items()}


def _brokers(client: Client) -> list[int]:
    brokers = broker_ids(client)
    if not brokers:
        raise NoBrokersError(
            f"no broker is registered in ZooKeeper at {place_of(client)}; start one, or check the chroot"
        )
    return brokers


def check_followed(client: Client) -> None:
    """Check that the brokers follow the settings of topics in ZooKeeper. Raise ConfigError for brokers of 0.8.0."""
    if client.exists(CONFIG_CHANGES) is None:
        raise ConfigError(
            "these brokers do not follow settings of topics, as those of Kafka 0.8.0; their server.properties has"
            " settings such as log.retention.hours.per.topic"
        )


def _assign(partitions: range, brokers: Sequence[int], replication: int) -> dict[int, list[int]]:
    check_replication(replication, brokers)
    return {
        partition: [brokers[(partition + replica) % len(brokers)] for replica in range(replication)]
        for partition in partitions
    }


def _await_leaders(client: Client, topic: str, partitions: range, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    waiting = list(partitions)
    while waiting := [
        number for number, led in zip(waiting, _have_leaders(client, topic, waiting), strict=True) if not led
    ]:
        if time.monotonic() > deadline:
            raise CoordinationError(
                f"topic {topic!r}: {len(waiting)} of {len(partitions)} partitions lack a leader after {timeout_s:g} s, "
                f"first: {waiting[0]}; look at the brokers' logs"
            )
        time.sleep(_POLL_S)


def _have_leaders(client: Client, topic: str, partitions: Sequence[int]) -> Iterator[bool]:
    # Pipelined: one round trip for all partitions.
    paths = [partition_state_path(TopicPartition(topic, number)) for number in partitions]
    for path, read in [(path, client.get_async(path)) for path in paths]:
        try:
            yield parse_leader(read.get()[0], path) >= 0
        except NoNodeError:
            yield False


def _delete(client: Client, topic: str, timeout_s: float) -> None:
    partitions = partitions_of(client, topic)
    mark = f"{_DELETIONS}/{topic}"
    is_ours = True
    try:
        client.create(mark, b"", makepath=True)
    except NodeExistsError:
        is_ours = False
    is_withdrawn = False
    deadline = time.monotonic() + timeout_s
    try:
        while client.exists(topic_path(topic)) and time.monotonic() <= deadline:
            time.sleep(_POLL_S)
    finally:
        # A controller that deletes a topic takes the leaders from its partitions first. It completes that anyway.
        if is_ours and client.exists(topic_path(topic)) and all(_have_leaders(client, topic, [*partitions])):
            with suppress(NoNodeError):  # From 0.10 on, a controller that may not delete topics removes it.
                client.delete(mark)
            is_withdrawn = True
    if client.exists(topic_path(topic)):
        left = f"{mark} still asks for it: delete that znode, or a controller deletes the topic once it may and can"
        raise CoordinationError(
            f"topic {topic!r} is still there {timeout_s:g} s after its deletion was asked for; brokers delete"
            " topics with delete.topic.enable=true only, those of 0.8.0 never."
            f" {'The request is withdrawn' if is_withdrawn else left}"
        )


def _set_assignment(client: Client, topic: str, assignment: Mapping[int, Sequence[int]]) -> None:
    """Replace a topic's partitions in its znode, and keep all other fields, such as the topic's id of Kafka 2.8."""
    path = topic_path(topic)
    while True:
        data, stat = client.get(path)
        try:
            client.set(path, encode_object(json.loads(data) | _partitions_field(assignment)), version=stat.version)
        except BadVersionError:
            continue  # A controller of 2.8 adds the topic's id after the creation.
        return


def _partitions_field(assignment: Mapping[int, Sequence[int]]) -> dict[str, Any]:
    return {"partitions": {str(number): list(ids) for number, ids in sorted(assignment.items())}}


def read_topics(client: Client, names: Iterable[str]) -> list[TopicState]:
    """
    Return the states of topics, in the order of ``names``.

    Raises:
        UnknownTopicError: A topic does not exist.
        ProtocolError: The znode of a topic cannot be read.
    """
    return [_read_topic(client, name) for name in names]


def _read_topic(client: Client, topic: str) -> TopicState:
    replicas = partitions_of(client, topic)
    # Pipelined: one round trip for all reads.
    config = client.get_async(f"/config/topics/{topic}")
    deletion, created = client.exists_async(f"{_DELETIONS}/{topic}"), client.exists_async(topic_path(topic))
    paths = {number: partition_state_path(TopicPartition(topic, number)) for number in sorted(replicas)}
    states = {number: client.get_async(path) for number, path in paths.items()}
    partitions = []
    for number, read in states.items():
        state = _json_of(read)
        leader, isr = state.get("leader"), state.get("isr")
        partitions.append(
            PartitionState(
                TopicPartition(topic, number),
                tuple(replicas[number]),
                leader if isinstance(leader, int) and leader >= 0 else None,
                tuple(isr if isinstance(isr, list) else ()),
            )
        )
    settings = _json_of(config).get("config")
    shown = settings if isinstance(settings, dict) else {}
    stat = created.get()
    return TopicState(topic, tuple(partitions), shown, deletion.get() is not None, stat.czxid if stat else 0)


def _json_of(read: Any) -> dict[str, Any]:
    """Return the JSON object in the data of a znode, or {} if the znode does not exist or has no JSON object."""
    try:
        value = json.loads(read.get()[0])
    except (NoNodeError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
