"""Administer a 0.8 cluster through its znodes: the chroot, brokers, topics and leftover groups."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeAlias

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from kiel_groups.config import HostPort, ZooKeeperConfig, check_name
from kiel_groups.errors import (
    ChrootMissingError,
    ConfigError,
    CoordinationError,
    NoBrokersError,
    NoZooKeeperError,
    ProtocolError,
    UnknownTopicError,
)
from kiel_groups.group.znodes.contents import parse_leader, parse_object, parse_topic, typed_field
from kiel_groups.group.znodes.layout import CONSUMERS, ROOT, GroupLayout
from kiel_groups.model import TopicPartition
from kiel_groups.wording import counted, some
from kiel_groups.zookeeper.kazoo_client import check_hosts, no_answer

__all__ = [
    "existing_topics",
    "unknown_topics",
    "Client",
    "zookeeper",
    "answers",
    "create_chroot",
    "broker_ids",
    "is_registered",
    "await_brokers",
    "controller_id",
    "topics",
    "partitions_of",
    "check_topic",
    "check_absent",
    "check_present",
    "create_topic",
    "grow_topic",
    "delete_topic",
    "PartitionState",
    "TopicState",
    "read_topics",
    "remove_empty_group",
]

log = logging.getLogger(__name__)


def existing_topics(names: Sequence[str]) -> ConfigError:
    """Return the error about topics that exist already; its text names up to ten."""
    do = "exists already; delete it first, or choose another name"
    return ConfigError(
        f"{_named(names)} {do if len(names) == 1 else 'exist already; delete them first, or choose other names'}"
    )


def unknown_topics(missing: Sequence[str], found: Collection[str], place: str) -> UnknownTopicError:
    """
    Return the error about topics that do not exist; its text names up to ten, and suggests similar names.

    Args:
        missing: The names of the missing topics.
        found: The names of the existing topics.
        place: Where they were looked for, such as "in ZooKeeper at zk-1:2181".
    """
    near = [match for name in missing for match in get_close_matches(name, found, 1)]
    hint = f" (did you mean {some(map(repr, near))}?)" if near else ""
    return UnknownTopicError(f"{_named(missing)} {'does' if len(missing) == 1 else 'do'} not exist {place}{hint}")


def _named(names: Sequence[str]) -> str:
    return f"{'topic' if len(names) == 1 else 'topics'} {some(map(repr, names), 10)}"


# Administer a 0.8 cluster through its znodes: the chroot, brokers and topics.
#
# The functions block, so they must not run on an event loop. Each function with a parameter ``hosts`` opens a session
# of its own (some 10 ms) and closes it.


#: The type of the client that ``zookeeper`` yields, for packages that must not import kazoo.
Client: TypeAlias = KazooClient

_POLL_S = 0.01
_TOPICS = "/brokers/topics"
_BROKERS = "/brokers/ids"
_CONTROLLER = "/controller"
#: The znodes by which a deletion is requested, one per topic.
_DELETIONS = "/admin/delete_topics"
#: The longest name of a directory on the file systems that brokers use.
_LONGEST_FOLDER = 255

# kazoo warns about every refused connection; while a caller waits for a server to start, there are many.
_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.addHandler(logging.NullHandler())


@contextmanager
def zookeeper(hosts: str, *, timeout_s: float = 10.0) -> Iterator[Client]:
    """
    Open a session for a ``with`` block.

    Args:
        hosts: ``host:port,host:port/chroot``.
        timeout_s: How long to wait for the first answer, in seconds.

    Raises:
        NoZooKeeperError: No server answered in time, or none has an address.
        ChrootMissingError: The chroot does not exist.
        CoordinationError: ZooKeeper failed during the block, and the block did not handle the error.
    """
    config = ZooKeeperConfig.parse(hosts)
    check_hosts(config)
    # kazoo uses one timeout for the session and for a server that accepts the connection but does not answer.
    client = KazooClient(hosts=config.hosts.removesuffix(config.chroot), timeout=timeout_s, logger=_kazoo_log)
    try:
        try:
            client.start(timeout=timeout_s)
        except KazooTimeoutError as error:
            raise NoZooKeeperError(no_answer(config, timeout_s)) from error
        if config.chroot and not client.exists(config.chroot):
            raise ChrootMissingError(
                f"the chroot {config.chroot} does not exist in ZooKeeper at {config.hosts}; Kafka's brokers make"
                " theirs, as zookeeper.connect has it: give the same one, or none"
            )
        client.chroot = config.chroot  # Only now, because kazoo logs a warning of its own if the chroot is missing.
        yield client
    except KazooException as error:
        raise CoordinationError(
            f"ZooKeeper at {config.hosts} failed: {type(error).__name__} {error}".rstrip()
        ) from error
    finally:
        with suppress(AttributeError):  # At a Ctrl-C, kazoo's thread may not have made the pipe that this writes to.
            client.stop()
        client.close()


def answers(hosts: str, *, timeout_s: float) -> bool:
    """Return whether ZooKeeper opens a session within ``timeout_s``, and then answers a read."""
    try:
        with zookeeper(hosts, timeout_s=timeout_s) as client:
            client.exists("/zookeeper")
    except CoordinationError:
        return False
    return True


def create_chroot(hosts: str) -> None:
    """Create the chroot of a connection string and its parents; do nothing if it exists, or if there is no chroot."""
    config = ZooKeeperConfig.parse(hosts)
    with zookeeper(config.hosts.removesuffix(config.chroot)) as client:
        client.ensure_path(config.chroot or "/")


def broker_ids(client: Client) -> list[int]:
    """Return the ids of the brokers that are registered now, ascending."""
    try:
        return sorted(int(name) for name in client.get_children(_BROKERS) if name.isdecimal())
    except NoNodeError:
        return []


def is_registered(client: Client, broker_id: int) -> bool:
    """Return whether a broker's ephemeral znode exists. After kill −9 it exists until the broker's session expires."""
    return client.exists(f"{_BROKERS}/{broker_id}") is not None


def await_brokers(hosts: str, count: int, *, timeout_s: float) -> None:
    """Wait until ``count`` brokers are registered, at most ``timeout_s`` seconds; a timeout raises no error."""
    with zookeeper(hosts) as client:
        deadline = time.monotonic() + timeout_s
        while len(broker_ids(client)) < count and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def controller_id(client: Client) -> int | None:
    """Return the id of the broker that is the controller, or None while there is no controller."""
    try:
        data, _ = client.get(_CONTROLLER)
    except NoNodeError:
        return None
    number: int = typed_field(parse_object(data, _CONTROLLER), "brokerid", int, _CONTROLLER)
    return number


def topics(client: Client) -> list[str]:
    """Return the names of all topics, in alphabetical order."""
    try:
        return sorted(client.get_children(_TOPICS))
    except NoNodeError:
        return []


def partitions_of(client: Client, topic: str) -> dict[int, list[int]]:
    """
    Return the replicas of each partition of a topic, by partition number.

    Raises:
        ProtocolError: The topic's znode has garbage.
        UnknownTopicError: The topic does not exist.
    """
    path = f"{_TOPICS}/{topic}"
    try:
        data, _ = client.get(path)
    except NoNodeError as error:
        raise _unknown(client, [topic]) from error
    parse_topic(data, path)
    partitions = typed_field(parse_object(data, path), "partitions", dict, path)
    if not all(isinstance(replicas, list) for replicas in partitions.values()):
        raise ProtocolError(f"{path}: lists of brokers were expected, found {list(partitions.values())[:5]!r:.200}")
    return {int(number): replicas for number, replicas in partitions.items()}


def check_topic(topic: str, partitions: int) -> None:
    """
    Check that brokers can store a topic of this name with this number of partitions.

    Raises:
        ConfigError: Kafka 0.8 does not allow the name, ``partitions`` is less than 1, or the brokers' directory names
            would be too long.
    """
    check_name(topic, "topic")
    if partitions < 1:
        raise ConfigError(f"partitions: {partitions} given for topic {topic!r}; expected at least 1")
    # A broker creates a directory "topic-partition" for each replica, and fails for ever if the name is too long.
    if len(f"{topic}-{partitions - 1}") > _LONGEST_FOLDER:
        longest, many = _LONGEST_FOLDER - len(f"-{partitions - 1}"), counted(partitions, "partition", "partitions")
        raise ConfigError(
            f"topic {topic!r}: a name of {len(topic)} characters; with {many} it may have {longest}, because brokers"
            f" keep partition {partitions - 1} in a folder 'name-{partitions - 1}' and file systems allow"
            f" {_LONGEST_FOLDER} characters"
        )


def check_absent(client: Client, names: Collection[str]) -> None:
    """
    Check that no topic has one of these names.

    Raises:
        ConfigError: Some of the topics exist; the text names up to ten.
    """
    found = set(topics(client))
    if there := [name for name in names if name in found]:
        raise existing_topics(there)


def check_present(client: Client, names: Collection[str]) -> None:
    """
    Check that a topic of each of these names exists.

    Raises:
        UnknownTopicError: Some of the topics do not exist; the text names up to ten.
    """
    found = set(topics(client))
    if missing := [name for name in names if name not in found]:
        raise _unknown(client, missing)


def _unknown(client: Client, missing: Sequence[str]) -> UnknownTopicError:
    return unknown_topics(missing, topics(client), f"in ZooKeeper at {_place(client)}")


def create_topic(hosts: str, topic: str, partitions: int, replication: int = 1, *, timeout_s: float = 30.0) -> None:
    """
    Create a topic and wait until every partition has a leader.

    Replicas are assigned round-robin to the brokers that are registered now.

    Raises:
        ConfigError: ``check_topic`` refuses the topic, the topic exists, or ``replication`` is not between 1 and the
            number of brokers.
        NoBrokersError: No broker is registered.
        CoordinationError: Some partitions have no leader after ``timeout_s`` seconds.
    """
    check_topic(topic, partitions)
    with zookeeper(hosts) as client:
        assignment = _assign(range(partitions), _brokers(client), replication)
        try:
            client.create(f"/config/topics/{topic}", _json({"version": 1, "config": {}}), makepath=True)
        except NodeExistsError:
            # An earlier topic of that name left this znode, or the topic itself exists: then the next create fails.
            _kazoo_log.debug("/config/topics/%s exists already; keeping it", topic)
        try:
            client.create(f"{_TOPICS}/{topic}", _topic_data(assignment), makepath=True)
        except NodeExistsError as error:
            raise ConfigError(f"topic {topic!r} exists already; delete it first, or choose another name") from error
        _await_leaders(client, topic, range(partitions), timeout_s)


def grow_topic(hosts: str, topic: str, partitions: int, *, timeout_s: float = 30.0) -> None:
    """
    Increase the number of a topic's partitions to ``partitions``, and wait until each has a leader.

    Raises:
        UnknownTopicError: The topic does not exist.
        ConfigError: The topic has at least ``partitions`` already, its name is too long for that number, or the topic
            has more replicas than there are brokers.
        NoBrokersError: No broker is registered.
        CoordinationError: Some partitions have no leader after ``timeout_s`` seconds.
    """
    with zookeeper(hosts) as client:
        assignment = partitions_of(client, topic)
        if partitions <= len(assignment):
            raise ConfigError(
                f"topic {topic!r} has {counted(assignment, 'partition', 'partitions')} already;"
                f" --partitions {partitions} given, expected more"
            )
        check_topic(topic, partitions)
        replication = len(assignment[0])
        added = _assign(range(len(assignment), partitions), _brokers(client), replication)
        _set_assignment(client, topic, assignment | added)
        _await_leaders(client, topic, range(partitions), timeout_s)


def delete_topic(hosts: str, topic: str, *, timeout_s: float = 30.0) -> None:
    """
    Request the deletion of a topic, and wait until the brokers, if ``delete.topic.enable`` is set, have deleted it.

    If no broker begins the deletion in time, or the caller interrupts the wait, the request is withdrawn: a controller
    that starts after the setting has changed would delete the topic, with all records that it has by then.

    Raises:
        UnknownTopicError: The topic does not exist.
        CoordinationError: The topic still exists after ``timeout_s`` seconds.
    """
    with zookeeper(hosts) as client:
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
            while client.exists(f"{_TOPICS}/{topic}") and time.monotonic() <= deadline:
                time.sleep(_POLL_S)
        finally:
            # A controller that deletes a topic takes the leaders from its partitions first. It completes that anyway.
            if is_ours and client.exists(f"{_TOPICS}/{topic}") and all(_have_leaders(client, topic, [*partitions])):
                with suppress(NoNodeError):  # From 0.10 on, a controller that may not delete topics removes it.
                    client.delete(mark)
                is_withdrawn = True
        if client.exists(f"{_TOPICS}/{topic}"):
            left = f"{mark} still asks for it: delete that znode, or a controller deletes the topic once it may and can"
            raise CoordinationError(
                f"topic {topic!r} is still there {timeout_s:g} s after its deletion was asked for; brokers delete"
                " topics with delete.topic.enable=true only, those of 0.8.0 never."
                f" {'The request is withdrawn' if is_withdrawn else left}"
            )


def _brokers(client: Client) -> list[int]:
    brokers = broker_ids(client)
    if not brokers:
        raise NoBrokersError(
            f"no broker is registered in ZooKeeper at {_place(client)}; start one, or check the chroot"
        )
    return brokers


def _assign(partitions: range, brokers: Sequence[int], replication: int) -> dict[int, list[int]]:
    if not 1 <= replication <= len(brokers):
        raise ConfigError(f"replication: {replication} given; expected 1 to {len(brokers)}, the number of live brokers")
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
    paths = [f"{_TOPICS}/{topic}/partitions/{number}/state" for number in partitions]
    for path, read in [(path, client.get_async(path)) for path in paths]:
        try:
            yield parse_leader(read.get()[0], path) >= 0
        except NoNodeError:
            yield False


def _set_assignment(client: Client, topic: str, assignment: Mapping[int, Sequence[int]]) -> None:
    """Replace a topic's partitions, and keep all other fields of its znode: from 2.8 on, it has the topic's id."""
    path = f"{_TOPICS}/{topic}"
    while True:
        data, stat = client.get(path)
        try:
            client.set(path, _json(json.loads(data) | _partitions_field(assignment)), version=stat.version)
        except BadVersionError:
            continue  # A controller of 2.8 adds the topic's id after the creation.
        return


def _topic_data(assignment: Mapping[int, Sequence[int]]) -> bytes:
    return _json({"version": 1} | _partitions_field(assignment))


def _partitions_field(assignment: Mapping[int, Sequence[int]]) -> dict[str, Any]:
    return {"partitions": {str(number): list(ids) for number, ids in sorted(assignment.items())}}


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _place(client: Client) -> str:
    return ",".join(str(HostPort(host, port)) for host, port in client.hosts) + str(client.chroot)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition, with brokers by their ids; ``leader`` is None while it has no leader, ``isr`` empty if unknown."""

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
    One topic; ``partitions`` are in order.

    ``config`` has the settings that override the brokers' defaults. It is None, as is ``is_being_deleted``, if brokers
    were asked, which say neither.
    """

    topic: str
    partitions: tuple[PartitionState, ...]
    config: Mapping[str, str] | None
    is_being_deleted: bool | None

    @property
    def leaderless(self) -> tuple[int, ...]:
        """The numbers of the partitions without a leader."""
        return tuple(each.topic_partition.partition for each in self.partitions if each.leader is None)

    @property
    def under_replicated(self) -> tuple[int, ...]:
        """The numbers of the partitions with replicas that are not in sync."""
        return tuple(each.topic_partition.partition for each in self.partitions if each.is_under_replicated)


def read_topics(client: Client, names: Iterable[str]) -> list[TopicState]:
    """
    Read topics, in the order given.

    Raises:
        UnknownTopicError: A topic does not exist.
    """
    return [_read_topic(client, name) for name in names]


def _read_topic(client: Client, topic: str) -> TopicState:
    replicas = partitions_of(client, topic)
    # Pipelined: one round trip for all reads.
    config = client.get_async(f"/config/topics/{topic}")
    deletion = client.exists_async(f"/admin/delete_topics/{topic}")
    states = {
        number: client.get_async(f"/brokers/topics/{topic}/partitions/{number}/state") for number in sorted(replicas)
    }
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
    return TopicState(topic, tuple(partitions), shown, deletion.get() is not None)


def _json_of(read: Any) -> dict[str, Any]:
    """Return the JSON object that was read from a znode, or {} if there is no znode (yet) or no object in it."""
    try:
        value = json.loads(read.get()[0])
    except (NoNodeError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def remove_empty_group(client: Client, group: str) -> bool:
    """
    Delete the parent znodes of a group that has no member, no candidate, no plan and no settings.

    The deletion is one transaction, so that a member that joins meanwhile does not lose the parents of its own
    znodes. If any client has offsets, owners or consumer ids, the parent znodes under ``/consumers`` stay. A group of
    workers or other programs has settings as soon as it has had a member, so it is not deleted.

    Returns:
        Whether anything was deleted. If not, the log says what the group has.
    """
    layout = GroupLayout(group)
    folders = [path for path in reversed(layout.parents) if path not in (ROOT, CONSUMERS)]
    ours = [path for path in folders if path.startswith(f"{ROOT}/")]
    for these in (folders, ours):
        transaction = client.transaction()
        for path in these:
            transaction.delete(path)
        if not any(isinstance(outcome, Exception) for outcome in transaction.commit()):
            log.debug("group %s: the group was empty; deleted %s", group, counted(these, "parent znode"))
            return True
    with suppress(NoNodeError):
        kept = set(client.get_children(layout.root)) - {path.rpartition("/")[2] for path in ours}
        kept |= {path.rpartition("/")[2] for path in ours[:-1] if client.exists(path) and client.get_children(path)}
        log.info("group %s: nothing was deleted: the group has %s", group, ", ".join(sorted(kept)) or "changed")
    return False
