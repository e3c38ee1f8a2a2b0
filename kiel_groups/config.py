"""
Frozen settings, validated once, where they enter.

Every class raises ConfigError naming the setting, what was given and what was expected. Durations end in ``_ms`` or
``_s``, sizes in ``_bytes``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kiel_groups.errors import ConfigError

__all__ = [
    "HostPort",
    "BrokerConfig",
    "FetchConfig",
    "ProducerConfig",
    "GroupConfig",
    "DebounceConfig",
    "ZooKeeperConfig",
    "parse_hosts",
    "check_name",
    "topic_names",
]

KAFKA_PORT = 9092
ZOOKEEPER_PORT = 2181

#: What brokers are told, for their logs and metrics.
CLIENT_ID = "kiel-groups"

#: Group ids and topics of Kafka 0.8; ids of both become names of znodes.
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_LONGEST_TOPIC = 255

_MOST_INT16 = (1 << 15) - 1
_MOST_INT32 = (1 << 31) - 1

#: Names, IPv4 addresses, and IPv6 addresses in brackets.
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")

#: Who writes the offset znodes: the members themselves, with fences, or the brokers on request.
ZOOKEEPER_STORE = "zookeeper"
BROKER_V0 = "broker-v0"
STORES = (ZOOKEEPER_STORE, BROKER_V0)

ResetPolicy = Literal["earliest", "latest", "none"]


class HostPort(NamedTuple):
    """One server's address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_hosts(hosts: str | Iterable[str], default_port: int, setting: str) -> tuple[HostPort, ...]:
    """
    Read ``host``, ``host:port`` or a comma-separated string of them.

    Args:
        hosts: A list of addresses or one string.
        default_port: The port where one was left out.
        setting: What to call the setting in an error.

    Raises:
        ConfigError: Nothing was given, or an entry is no address.
    """
    entries = text_of(hosts, setting).split(",")
    found = []
    for entry in (entry.strip() for entry in entries):
        if not entry:
            continue
        host, colon, port = entry.rpartition(":")
        if not colon:
            host, port = entry, str(default_port)
        if not _HOST.fullmatch(host) or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(f"{setting}: {entry!r} is not an address; expected 'host' or 'host:port'")
        found.append(HostPort(host, int(port)))
    if not found:
        raise ConfigError(f"{setting}: no address given; expected at least one 'host' or 'host:port'")
    return tuple(found)


def text_of(texts: str | Iterable[str], setting: str) -> str:
    """
    A string, or a list of them as one with commas.

    Raises:
        ConfigError: Neither the one nor the other.
    """
    if isinstance(texts, str):
        return texts
    if not isinstance(texts, Iterable) or isinstance(texts, (bytes, Mapping)):
        raise ConfigError(f"{setting}: {texts!r} given; expected a string or a list of strings")
    listed = list(texts)
    if not all(isinstance(text, str) for text in listed):
        raise ConfigError(f"{setting}: {listed!r} given; expected a string or a list of strings")
    return ",".join(listed)


def check_name(name: str, setting: str) -> str:
    """
    Return a legal group or topic name as it is.

    Raises:
        ConfigError: Empty, over 255 characters, ``.`` or ``..``, or with a character outside ``[a-zA-Z0-9._-]``.
    """
    if not isinstance(name, str) or not _LEGAL_NAME.fullmatch(name) or name in {".", ".."}:
        raise ConfigError(
            f"{setting}: {name!r} is not a legal name; Kafka 0.8 allows letters, digits, '.', '_' and '-' only"
        )
    if len(name) > _LONGEST_TOPIC:
        raise ConfigError(f"{setting}: a name of {len(name)} characters; at most {_LONGEST_TOPIC} are allowed")
    return name


def topic_names(topics: object) -> list[str]:
    """
    What a program gave to name one topic, or several: their legal names, each once.

    Raises:
        ConfigError: A name that no topic of Kafka 0.8 can have, or what holds no names.
    """
    if not isinstance(topics, Iterable) or isinstance(topics, bytes):
        raise ConfigError(f"topic: {topics!r} given; expected the name of a topic, or a list of names")
    names = [topics] if isinstance(topics, str) else topics
    return list(dict.fromkeys(check_name(name, "topic") for name in names))


def _at_least(least: int, **settings: int) -> None:
    for setting, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{setting}: {value!r} given; expected a whole number of at least {least}")


def _fits_int32(**settings: int) -> None:
    """For what goes over the wire, after ``_at_least``."""
    for setting, value in settings.items():
        if value > _MOST_INT32:
            raise ConfigError(f"{setting}: {value!r} given; the protocol has room for {_MOST_INT32} at most")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """
    How to reach the brokers.

    ``hosts`` are tried in turn until one answers; the rest of the cluster is learnt from it. ``backoff_ms`` doubles
    up to ``max_backoff_ms``, with jitter. Every ``metadata_max_age_ms``, a client that fetches or produces asks another
    broker than last time for metadata.
    """

    hosts: tuple[HostPort, ...]
    client_id: str = CLIENT_ID
    connect_timeout_ms: int = 5_000
    request_timeout_ms: int = 30_000
    backoff_ms: int = 50
    max_backoff_ms: int = 5_000
    metadata_max_age_ms: int = 300_000

    def __post_init__(self) -> None:
        _at_least(
            1,
            connect_timeout_ms=self.connect_timeout_ms,
            request_timeout_ms=self.request_timeout_ms,
            backoff_ms=self.backoff_ms,
            max_backoff_ms=self.max_backoff_ms,
            metadata_max_age_ms=self.metadata_max_age_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchConfig:
    """
    How to fetch.

    A broker answers when ``min_bytes`` are there or ``max_wait_ms`` have passed. ``max_bytes`` is what one answer may
    hold in all, shared among its partitions; a message larger than its share makes that partition's share grow up to
    ``max_message_bytes``, and then is an error. ``max_decompressed_bytes`` bounds what one compressed set unpacks to.
    """

    max_wait_ms: int = 1_000
    min_bytes: int = 1
    max_bytes: int = 1 << 20
    max_message_bytes: int = 64 << 20
    max_decompressed_bytes: int = 64 << 20
    auto_offset_reset: ResetPolicy = "earliest"

    def __post_init__(self) -> None:
        _at_least(0, max_wait_time=self.max_wait_ms, min_bytes=self.min_bytes)
        _at_least(
            1,
            max_bytes=self.max_bytes,
            max_message_bytes=self.max_message_bytes,
            max_decompressed_bytes=self.max_decompressed_bytes,
        )
        _fits_int32(
            max_wait_time=self.max_wait_ms,
            min_bytes=self.min_bytes,
            max_bytes=self.max_bytes,
            max_message_bytes=self.max_message_bytes,
        )
        if self.auto_offset_reset not in ("earliest", "latest", "none"):
            raise ConfigError(
                f"auto_offset_reset: {self.auto_offset_reset!r} given; expected 'earliest', 'latest' or 'none'"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """
    How to produce.

    ``required_acks`` is -1 (all in-sync replicas have it), 0 (send and forget), 1 (the leader has it), or how many
    replicas are to have it; ``ack_timeout_ms`` is how long the broker may wait for them. With ``linger_ms``, a batch
    goes out when a partition has ``batch_size`` records, or when its oldest one has waited so long. Without it, records
    go out when ``batch_size`` of them wait in all, however long that takes. ``retries`` counts further tries after
    errors that may heal. ``max_buffered_bytes`` may wait for their outcome.
    """

    required_acks: int = -1
    ack_timeout_ms: int = 500
    batch_size: int = 1
    linger_ms: int | None = None
    compression: str | None = None
    retries: int = 10
    max_request_bytes: int = 900_000
    max_buffered_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if type(self.required_acks) is not int or not -1 <= self.required_acks <= _MOST_INT16:
            raise ConfigError(
                f"required_acks: {self.required_acks!r} given; expected -1 (all in-sync replicas), 0 (none), or how"
                " many replicas are to have a record"
            )
        linger_ms = 0 if self.linger_ms is None else self.linger_ms
        _at_least(0, linger_ms=linger_ms, retries=self.retries, ack_timeout=self.ack_timeout_ms)
        _at_least(
            1,
            batch_size=self.batch_size,
            max_request_bytes=self.max_request_bytes,
            max_buffered_bytes=self.max_buffered_bytes,
        )
        _fits_int32(ack_timeout=self.ack_timeout_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperConfig:
    """
    How to reach ZooKeeper.

    ``hosts`` is kazoo's connection string: ``host:port,host:port/chroot``. The server may grant another session
    timeout than asked; everything that depends on it uses the granted one. ``connect_timeout_ms`` bounds all that
    joining a group takes, from the first connection to the registration. ``heartbeat_interval_ms`` is how often a
    member proves that its session lives; None: every sixth of the granted timeout, at most every third of it.
    """

    hosts: str
    session_timeout_ms: int = 10_000
    connect_timeout_ms: int = 15_000
    heartbeat_interval_ms: int | None = None

    def __post_init__(self) -> None:
        _at_least(100, session_timeout_ms=self.session_timeout_ms)
        _at_least(1, connect_timeout_ms=self.connect_timeout_ms)
        if self.heartbeat_interval_ms is not None:
            _at_least(1, heartbeat_interval_ms=self.heartbeat_interval_ms)

    @classmethod
    def parse(
        cls, zk_hosts: str | Iterable[str], *, heartbeat_interval_ms: int | None = None, **settings: int
    ) -> ZooKeeperConfig:
        """Read a list or a string of hosts; a chroot may follow the last one, a port left out is 2181."""
        text = text_of(zk_hosts, "zk_hosts")
        addresses, slash, chroot = text.partition("/")
        hosts = parse_hosts(addresses, ZOOKEEPER_PORT, "zk_hosts")
        if slash and ("//" in slash + chroot or "," in chroot):
            raise ConfigError(f"zk_hosts: {text!r}: the chroot '/{chroot}' must be one path after the last host")
        path = chroot.rstrip("/")
        chrooted = ",".join(map(str, hosts)) + (f"/{path}" if path else "")
        return cls(hosts=chrooted, heartbeat_interval_ms=heartbeat_interval_ms, **settings)

    @property
    def chroot(self) -> str:
        """The chroot with its slash, "" where there is none."""
        return "".join(self.hosts.partition("/")[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class DebounceConfig:
    """
    How long a leader waits for a burst of changes to end.

    A plan is made when nothing has changed for ``quiet_ms``, at the latest ``bound_ms`` after the first change; the
    first plan of a new leader waits ``initial_delay_ms``.
    """

    quiet_ms: int = 100
    bound_ms: int = 1_000
    initial_delay_ms: int = 300

    def __post_init__(self) -> None:
        _at_least(
            0,
            debounce_quiet_ms=self.quiet_ms,
            debounce_bound_ms=self.bound_ms,
            debounce_initial_delay_ms=self.initial_delay_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """
    Membership of one group.

    ``store``, ``mode`` and ``auto_offset_reset`` must be the same for all its members; the first member writes them to
    the group's ``/config`` znode and every other is checked against it. ``reconcile_interval_ms`` is how often a member
    reads its own slice and claims although no watch fired, with jitter.

    ``instance_id`` makes a static member: its place in the plan outlives its session for ``static_grace_ms`` (the
    leader's counts), and a restart moves nothing. The watchdog ends the session of a member that is alive and does not
    get on: one that has had the same record or values in hand, or the same hook of the listener under way, for
    ``max_poll_interval_ms``, or whose event loop was blocked for ``loop_stall_ms``; 0 switches either off. The default,
    Kafka's five minutes, is generous: what is taken from a member that is only slow is delivered again to one that may
    take as long.

    ``client`` is the kind of program that the member is, for tools; ``job`` is part of its id, where operators are to
    know it by more than its host.
    """

    group: str
    instance_id: str | None = None
    client: str = "tornado"
    job: str | None = None
    store: str = "zookeeper"
    mode: str = "cooperative"
    auto_offset_reset: ResetPolicy = "earliest"
    debounce: DebounceConfig = DebounceConfig()
    reconcile_interval_ms: int = 45_000
    auto_commit_interval_ms: int = 5_000
    autocommit: bool = True
    drain_alarm_ms: int = 30_000
    allocator_timeout_ms: int = 30_000
    max_poll_interval_ms: int = 300_000
    loop_stall_ms: int = 300_000
    static_grace_ms: int = 60_000

    def __post_init__(self) -> None:
        check_name(self.group, "group")
        if self.instance_id is not None:
            check_name(self.instance_id, "instance_id")
        if self.job is not None:
            check_name(self.job, "job")
        if self.store not in STORES:
            raise ConfigError(f"store: {self.store!r} given; expected {' or '.join(map(repr, STORES))}")
        if not isinstance(self.autocommit, bool):
            raise ConfigError(f"autocommit: {self.autocommit!r} given; expected True or False")
        if self.mode != "cooperative":
            raise ConfigError(f"mode: {self.mode!r} given; expected 'cooperative'")
        _at_least(
            1,
            reconcile_interval_ms=self.reconcile_interval_ms,
            auto_commit_interval_ms=self.auto_commit_interval_ms,
            drain_alarm_ms=self.drain_alarm_ms,
            allocator_timeout_ms=self.allocator_timeout_ms,
        )
        _at_least(
            0,
            max_poll_interval_ms=self.max_poll_interval_ms,
            loop_stall_ms=self.loop_stall_ms,
            static_grace_ms=self.static_grace_ms,
        )
