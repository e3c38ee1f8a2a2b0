"""
The settings of clients and members: frozen dataclasses, validated when they are constructed.

Every class raises ConfigError for an illegal value. The message names the setting, the given value and the expected
values. Names of durations end in ``_ms``, names of sizes in ``_bytes``.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from ssl import SSLContext
from typing import Any, Literal, NamedTuple, TypeGuard
from urllib.parse import urlsplit

from kiel_groups.errors import ConfigError

KAFKA_PORT = 9092
ZOOKEEPER_PORT = 2181

#: The name that clients send to brokers, for their logs and metrics.
CLIENT_ID = "kiel-groups"

#: The names of groups and topics in Kafka 0.8; both become names of znodes.
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_LONGEST_TOPIC = 255

_MOST_INT16 = (1 << 15) - 1
_MOST_INT32 = (1 << 31) - 1

#: The environment variable that names the file with the credentials and the TLS settings of servers.
SECURITY_VARIABLE = "KIEL_GROUPS_SECURITY"

#: A name, an IPv4 address, or an IPv6 address in brackets; and the port, if one is given.
_ADDRESS = re.compile(r"(?:([A-Za-z0-9._-]+)|\[([0-9A-Fa-f:.]+)\])(?::([0-9]{1,9}))?")

#: Where a group's offsets are, and who writes them: the offset znodes, which the members themselves write in fenced
#: transactions, or the brokers on request; or Kafka, whose coordinator of the group writes them.
ZOOKEEPER_STORE = "zookeeper"
BROKER_V0 = "broker-v0"
BROKER_V1 = "broker-v1"
STORES = (ZOOKEEPER_STORE, BROKER_V0, BROKER_V1)

ResetPolicy = Literal["earliest", "latest", "none"]


#: How clients connect to brokers, and the mechanisms of SASL, as brokers name them.
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class Secret(str):
    """A text that no log line, error or ``repr`` of another object shows. kazoo logs the ``repr`` of its requests."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "[hidden]"


class HostPort(NamedTuple):
    """The address of one server. ``host`` is a name, an IPv4 address, or an IPv6 address without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_hosts(hosts: str | Iterable[str], default_port: int, setting: str) -> tuple[HostPort, ...]:
    """
    Parse addresses of the form ``host`` or ``host:port``. An IPv6 address is given in brackets: ``[::1]:9092``.

    Args:
        hosts: A list of addresses, or one comma-separated string.
        default_port: The port of an address without a port.
        setting: The setting to name in an error.

    Raises:
        ConfigError: There is no address, or an entry is not an address.
    """
    entries = text_of(hosts, setting).split(",")
    found = []
    for entry in (entry.strip() for entry in entries):
        if not entry:
            continue
        parts = _ADDRESS.fullmatch(entry)
        name, ipv6, port = parts.groups() if parts else ("", "", "")
        if not (name or ipv6) or not 0 < int(port or default_port) < 65536:
            brackets = "; an IPv6 address needs brackets, as in '[::1]:9092'" if entry.count(":") > 1 else ""
            raise ConfigError(f"{setting}: {entry!r:.300} is not an address; expected 'host' or 'host:port'{brackets}")
        found.append(HostPort(name or ipv6, int(port or default_port)))
    if not found:
        raise ConfigError(f"{setting}: no address given; expected at least one 'host' or 'host:port'")
    return tuple(found)


def text_of(texts: str | Iterable[str], setting: str) -> str:
    """
    Return a string unchanged, or a list of strings joined by commas.

    Raises:
        ConfigError: ``texts`` is neither a string nor a list of strings.
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
    Return a group or topic name unchanged if it is legal.

    Raises:
        ConfigError: The name is empty, longer than 255 characters, ``.`` or ``..``, or has a character outside
            ``[a-zA-Z0-9._-]``.
    """
    if not isinstance(name, str) or not _LEGAL_NAME.fullmatch(name) or name in {".", ".."}:
        raise ConfigError(
            f"{setting}: {name!r:.300} is not a legal name; Kafka 0.8 allows letters, digits, '.', '_' and '-' only"
        )
    if len(name) > _LONGEST_TOPIC:
        raise ConfigError(f"{setting}: a name of {len(name)} characters; at most {_LONGEST_TOPIC} are allowed")
    return name


def topic_names(topics: object) -> list[str]:
    """
    Return the topic names in ``topics``, one name or several, without duplicates.

    Raises:
        ConfigError: A name is not legal in Kafka 0.8, or the argument is not a name or a list of names.
    """
    if not isinstance(topics, Iterable) or isinstance(topics, bytes):
        raise ConfigError(f"topic: {topics!r} given; expected the name of a topic, or a list of names")
    names = [topics] if isinstance(topics, str) else topics
    return list(dict.fromkeys(check_name(name, "topic") for name in names))


def _check_reset_policy(policy: str) -> None:
    if policy not in ("earliest", "latest", "none"):
        raise ConfigError(f"auto_offset_reset: {policy!r} given; expected 'earliest', 'latest' or 'none'")


def security_path(given: str | os.PathLike[str] | None = None) -> str | None:
    """
    Return the absolute path of the file with the credentials and the TLS settings of servers, or None without a file.

    Args:
        given: The path. With None, the environment variable ``KIEL_GROUPS_SECURITY`` names the file, or there is none.

    Raises:
        ConfigError: ``given`` is not a path.
    """
    if given is not None and not isinstance(given, str | os.PathLike):
        raise ConfigError(f"security: {given!r:.100} given; expected the path of a file")
    path = given or os.environ.get(SECURITY_VARIABLE)
    return os.path.abspath(path) if path else None


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a setting or an argument is a whole number. For Python, True is 1; for a user, it is a mistake."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a setting or an argument is a number. True and NaN are none; infinity may stand for no limit."""
    return is_whole(value) or (isinstance(value, float) and not math.isnan(value))


def check_at_least(least: int, **settings: int) -> None:
    """Raise ConfigError, with the setting's name, for a setting that is not a whole number of at least ``least``."""
    for setting, value in settings.items():
        if not is_whole(value) or value < least:
            raise ConfigError(f"{setting}: {value!r} given; expected a whole number of at least {least}")


def _whole(default: int | None, least: int, setting: str = "", *, is_int32: bool = False) -> Any:
    """
    Declare a setting that is a whole number of at least ``least``. ``_check_numbers`` checks the value.

    ``setting`` is the name of the setting in errors, by default the name of the attribute. A setting may be None only
    if its default is None. A setting that is sent to servers (``is_int32``) must fit into 32 bits.
    """
    most = _MOST_INT32 if is_int32 else None
    return field(default=default, metadata={"least": least, "most": most, "setting": setting})


def _check_numbers(config: Any) -> None:
    """Raise ConfigError if a setting that was declared by ``_whole`` has a value outside its declared range."""
    for declared in fields(config):
        bounds, value = declared.metadata, getattr(config, declared.name)
        if not bounds or (value is None and declared.default is None):
            continue
        setting, most = bounds["setting"] or declared.name, bounds["most"]
        check_at_least(bounds["least"], **{setting: value})
        if most is not None and value > most:
            raise ConfigError(f"{setting}: {value!r} given; the protocol has room for {most} at most")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """
    The settings of a client's connections to the brokers.

    Attributes:
        hosts: The addresses that are tried in turn until one answers. Its answer names the other brokers.
        client_id: The client's name in the logs and metrics of the brokers.
        connect_timeout_ms: How long a connection to a broker may take.
        request_timeout_ms: How long a broker may take to answer a request.
        backoff_ms: The first pause before a request is tried again. The pause doubles with each try, with jitter.
        max_backoff_ms: The longest such pause.
        metadata_max_age_ms: How often a client that fetches or produces asks for the leaders of partitions, each time
            another broker.
        security: The path of the file with the credentials and the TLS settings of servers (``docs/security.rst``).
            With None, the environment variable ``KIEL_GROUPS_SECURITY`` names the file, or there is none. If one of the
            following settings is given, all of them replace what the file says about brokers.
        security_protocol: One of ``PROTOCOLS``, by default the one that the other settings imply.
        ssl_cafile: The file with the only authorities to trust, by default the system's.
        ssl_certfile: The file of the client's own certificate.
        ssl_keyfile: The file of its key, which may also be in the file of the certificate.
        ssl_password: The password of the key.
        ssl_check_hostname: Whether the certificate of a broker must have the broker's name.
        ssl_context: Replaces the other settings of TLS.
        sasl_mechanism: One of ``MECHANISMS``, for the user and the password that follow.
        sasl_plain_username: The user.
        sasl_plain_password: The password.
    """

    hosts: tuple[HostPort, ...]
    client_id: str = CLIENT_ID
    connect_timeout_ms: int = _whole(5_000, 1)
    request_timeout_ms: int = _whole(30_000, 1)
    backoff_ms: int = _whole(50, 1)
    max_backoff_ms: int = _whole(5_000, 1)
    metadata_max_age_ms: int = _whole(300_000, 1)
    security: str | os.PathLike[str] | None = None
    security_protocol: str | None = None
    ssl_context: SSLContext | None = None
    ssl_check_hostname: bool | None = None
    ssl_cafile: str | os.PathLike[str] | None = None
    ssl_certfile: str | os.PathLike[str] | None = None
    ssl_keyfile: str | os.PathLike[str] | None = None
    ssl_password: str | None = None
    sasl_mechanism: str | None = None
    sasl_plain_username: str | None = None
    sasl_plain_password: str | None = None

    def __post_init__(self) -> None:
        _check_numbers(self)
        if not isinstance(self.client_id, str | bytes):
            raise ConfigError(f"client_id: {self.client_id!r:.80} given; expected a string")
        object.__setattr__(self, "security", security_path(self.security))
        for name in ("ssl_password", "sasl_plain_password"):
            if isinstance(given := getattr(self, name), str):
                object.__setattr__(self, name, Secret(given))
        _check_security(self)

    @property
    def file(self) -> str | None:
        """The absolute path of the file with the credentials, or None without a file."""
        return None if self.security is None else os.fspath(self.security)

    @property
    def has_own_security(self) -> bool:
        """Whether these settings say by themselves how to connect to brokers, so that the file does not."""
        return any(getattr(self, name) is not None for name in _SECURITY)

    @property
    def is_plain(self) -> bool:
        """Whether connections certainly have neither TLS nor SASL, so that nothing has to be read for them."""
        return self.security is None and not self.has_own_security

    @classmethod
    def of_tool(
        cls, hosts: Collection[HostPort], limit_s: float, security: str | os.PathLike[str] | None = None
    ) -> BrokerConfig:
        """
        Return the settings of a tool that waits for the brokers for ``limit_s`` seconds in all.

        The hosts share four fifths of that time equally. A host may use its share, at least two seconds, to accept a
        connection and to answer a metadata request. A broker may pause for some seconds, and a tool that knows only
        this broker has no reason to give up earlier.
        """
        limit_ms = max(1, round(limit_s * 1000))
        connect_ms = min(limit_ms, max(2_000, limit_ms * 4 // 5 // len(hosts)))
        return cls(hosts=tuple(hosts), connect_timeout_ms=connect_ms, request_timeout_ms=limit_ms, security=security)


#: The settings of ``BrokerConfig`` that replace what the file says about brokers, and their types.
_TLS = ("ssl_check_hostname", "ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password")
_SASL = ("sasl_mechanism", "sasl_plain_username", "sasl_plain_password")
_SECURITY = ("security_protocol", "ssl_context", *_TLS, *_SASL)


def _check_security(config: BrokerConfig) -> None:
    """Raise ConfigError for a setting of TLS or SASL that is not valid, or that does not fit the others."""
    given = {name for name in _SECURITY if getattr(config, name) is not None}
    for name, kind in (
        *dict.fromkeys((*_SASL, "security_protocol", "ssl_password"), str).items(),
        *dict.fromkeys(("ssl_cafile", "ssl_certfile", "ssl_keyfile"), str | os.PathLike).items(),
        ("ssl_check_hostname", bool),
        ("ssl_context", SSLContext),
    ):
        value = getattr(config, name)
        if value is not None and not isinstance(value, kind):
            shown = "a value of another type" if "password" in name else f"{value!r:.80}"
            raise ConfigError(f"{name}: {shown} given; expected {getattr(kind, '__name__', 'a path')}")
    protocol = config.security_protocol
    for name, choices in (("security_protocol", PROTOCOLS), ("sasl_mechanism", MECHANISMS)):
        if name in given and getattr(config, name) not in choices:
            raise ConfigError(f"{name}: {getattr(config, name)!r:.80} given; expected {', '.join(choices)}")
    if "ssl_context" in given and (others := sorted(given.intersection(_TLS))):
        raise ConfigError(f"{others[0]}: given with ssl_context, which has its own; leave one out")
    if "ssl_certfile" not in given and (others := sorted(given & {"ssl_keyfile", "ssl_password"})):
        raise ConfigError(f"{others[0]}: given without ssl_certfile; expected both")
    wants_sasl = given.intersection(_SASL) or (protocol or "").startswith("SASL")
    if wants_sasl and (missing := [name for name in _SASL if not getattr(config, name)]):
        raise ConfigError(f"{missing[0]}: none given; expected {', '.join(_SASL)} together")
    unused = (*_TLS, "ssl_context") if protocol and not protocol.endswith("SSL") else ()
    unused = (*unused, *_SASL) if protocol and not protocol.startswith("SASL") else unused
    if others := sorted(given.intersection(unused)):
        raise ConfigError(f"{others[0]}: given with security_protocol={protocol!r}, which does not use it")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchConfig:
    """
    The settings of a consumer's fetches.

    A broker answers a fetch when it has ``min_bytes`` of new messages, or after ``max_wait_ms``. One answer has about
    ``max_bytes``. While partitions are behind, the size of an answer follows how fast the broker sends: between a
    sixteenth and four times of ``max_bytes``. If a message is larger than its partition's share, the share grows up to
    ``max_message_bytes``; a message beyond that is an error. Brokers of 3.x send no part of a message that is larger
    than the broker's ``fetch.max.bytes``. A compressed message set may decompress to at most
    ``max_decompressed_bytes``. Fetched records that are not delivered yet may take ``fetch_buffer_bytes``, counted
    without compression. One compressed message, or one message for each waiting call, may exceed that limit.
    ``auto_offset_reset`` decides where to start without a committed offset, and where to continue if the log lacks the
    position: ``"earliest"``, ``"latest"``, or ``"none"`` for an error.
    """

    max_wait_ms: int = _whole(1_000, 0, "max_wait_time", is_int32=True)
    min_bytes: int = _whole(1, 0, is_int32=True)
    max_bytes: int = _whole(1 << 20, 1, is_int32=True)
    max_message_bytes: int = _whole(64 << 20, 1, is_int32=True)
    max_decompressed_bytes: int = _whole(64 << 20, 1)
    fetch_buffer_bytes: int = _whole(64 << 20, 1)
    auto_offset_reset: ResetPolicy = "earliest"

    def __post_init__(self) -> None:
        _check_numbers(self)
        _check_reset_policy(self.auto_offset_reset)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """
    The settings of a producer: batches, requests and retries.

    ``required_acks`` is the number of replicas that must store a record before the broker acknowledges it: -1 (all
    in-sync replicas), 0 (no acknowledgement), 1 (the leader), or more. The broker waits for these replicas at most
    ``ack_timeout_ms``. With ``linger_ms``, a partition's batch is sent when it has ``batch_size`` records, or when its
    oldest record has waited for this time. Without ``linger_ms``, records are sent when ``batch_size`` records wait in
    all partitions together, without a time limit. A batch gets no record that would make it larger than
    ``batch_bytes``, unless the batch is empty. ``compression`` is the name of a codec, or None. ``retries`` is how many
    times a batch is sent again after retriable errors. A request is filled up to ``max_request_bytes``. Records without
    an outcome may take ``max_buffered_bytes``; further records are refused.
    """

    required_acks: int = -1
    ack_timeout_ms: int = _whole(500, 0, "ack_timeout", is_int32=True)
    batch_size: int = _whole(1, 1)
    batch_bytes: int = _whole(900 << 10, 1)
    linger_ms: int | None = _whole(None, 0)
    compression: str | None = None
    retries: int = _whole(10, 0)
    max_request_bytes: int = _whole(900_000, 1)
    max_buffered_bytes: int = _whole(64 << 20, 1)

    def __post_init__(self) -> None:
        if not is_whole(self.required_acks) or not -1 <= self.required_acks <= _MOST_INT16:
            raise ConfigError(
                f"required_acks: {self.required_acks!r} given; expected -1 (all in-sync replicas), 0 (none), or how"
                " many replicas are to have a record"
            )
        _check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperConfig:
    """
    The settings of a member's connection to ZooKeeper.

    ``hosts`` is kazoo's connection string: ``host:port,host:port/chroot``. The server may grant a session timeout other
    than ``session_timeout_ms``. Everything that depends on the timeout uses the granted timeout. ``connect_timeout_ms``
    limits the time to join a group, from the first connection to the registration. ``heartbeat_interval_ms`` is how
    often a member proves that its session is alive, at most a third of the granted timeout. None means a sixth of the
    granted timeout. ``security`` is the absolute path of the file with the credentials and the TLS settings of
    servers (``docs/security.rst``), or None without such a file. The file is read for each new session.
    ``broker_protocol`` is one of ``PROTOCOLS``: how the client of the session connects to the registered brokers.
    """

    hosts: str
    session_timeout_ms: int = _whole(10_000, 100, is_int32=True)
    connect_timeout_ms: int = _whole(15_000, 1)
    heartbeat_interval_ms: int | None = _whole(None, 1)
    security: str | None = None
    broker_protocol: str = PROTOCOLS[0]

    def __post_init__(self) -> None:
        _check_numbers(self)

    @classmethod
    def parse(
        cls,
        zk_hosts: str | Iterable[str],
        *,
        heartbeat_interval_ms: int | None = None,
        security: str | os.PathLike[str] | None = None,
        broker_protocol: str = PROTOCOLS[0],
        **settings: int,
    ) -> ZooKeeperConfig:
        """
        Return the settings for ZooKeeper at these hosts.

        Args:
            zk_hosts: A list of addresses, or one comma-separated string. A chroot may follow the last host. The default
                port is 2181.
            heartbeat_interval_ms: See the class.
            broker_protocol: See the class.
            security: The path of the file with the credentials and the TLS settings. With None, the environment
                variable ``KIEL_GROUPS_SECURITY`` names the file, or there is none.
            settings: The other settings by name.

        Raises:
            ConfigError: An address, the chroot or a setting is not legal.
        """
        # A variable that is read from a file or the output of a command often ends in a newline.
        text = text_of(zk_hosts, "zk_hosts").strip()
        addresses, slash, chroot = text.partition("/")
        hosts = parse_hosts(addresses, ZOOKEEPER_PORT, "zk_hosts")
        if slash and ("//" in slash + chroot or "," in chroot):
            raise ConfigError(f"zk_hosts: {text!r}: the chroot '/{chroot}' must be one path after the last host")
        if not chroot.isprintable():
            raise ConfigError(f"zk_hosts: {text!r}: the chroot has a character that no name in ZooKeeper may have")
        path = chroot.rstrip("/")
        chrooted = ",".join(map(str, hosts)) + (f"/{path}" if path else "")
        return cls(
            hosts=chrooted,
            heartbeat_interval_ms=heartbeat_interval_ms,
            security=security_path(security),
            broker_protocol=broker_protocol,
            **settings,
        )

    @property
    def chroot(self) -> str:
        """The chroot with its leading slash, or "" without a chroot."""
        return "".join(self.hosts.partition("/")[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """
    The settings of a member of a group that brokers coordinate.

    The coordinator removes a member that has sent no heartbeat for ``session_timeout_ms``. A rebalance waits for a
    member for ``rebalance_timeout_ms`` (before Kafka 0.10.1, for the session timeout). The first join fails if no
    broker names the coordinator within ``find_timeout_ms``. Every ``offset_refresh_ms``, the member commits its stored
    offsets again: brokers before Kafka 2.1 expire them a day after the commit. The leader looks for new partitions
    every ``metadata_max_age_ms``.
    """

    session_timeout_ms: int = _whole(30_000, 1, is_int32=True)
    heartbeat_interval_ms: int = _whole(3_000, 1, is_int32=True)
    rebalance_timeout_ms: int = _whole(300_000, 1, "max_poll_interval_ms", is_int32=True)
    find_timeout_ms: int = _whole(30_000, 1, "request_timeout_ms")
    offset_refresh_ms: int = 3_600_000
    metadata_max_age_ms: int = 300_000

    def __post_init__(self) -> None:
        _check_numbers(self)
        if self.heartbeat_interval_ms * 3 > self.session_timeout_ms:
            raise ConfigError(
                f"heartbeat_interval_ms: {self.heartbeat_interval_ms} given; expected at most"
                f" {self.session_timeout_ms // 3}, a third of session_timeout_ms ({self.session_timeout_ms})"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DebounceConfig:
    """
    The times for which a leader waits for a burst of changes to end before it plans.

    The leader plans when nothing has changed for ``quiet_ms``, but at the latest ``bound_ms`` after the first change.
    The first leader of a group waits for ``initial_delay_ms`` before its first plan, so that more members can join.
    """

    quiet_ms: int = _whole(100, 0, "debounce_quiet_ms")
    bound_ms: int = _whole(1_000, 0, "debounce_bound_ms")
    initial_delay_ms: int = _whole(300, 0, "debounce_initial_delay_ms")

    def __post_init__(self) -> None:
        _check_numbers(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """
    The settings of a consumer's membership in its group.

    ``store``, ``mode`` and ``auto_offset_reset`` must be the same for all members of a group: the first member writes
    them to the group's ``/config`` znode, and the settings of every other member are compared with the znode. With
    ``autocommit``, finished records are committed every ``auto_commit_interval_ms``. Every ``reconcile_interval_ms``,
    with jitter, a member reads its assignment and its claims even if no watch fired. A drain, a claim without a start
    position, or a partition without its planned owner is reported after ``drain_alarm_ms``. A leader's allocator may
    take ``allocator_timeout_ms`` for a plan. A join that failed is tried again after ``retry_backoff_ms``; the pause
    doubles with each failure in a row.

    ``instance_id`` makes a static member. The leader keeps the assignment of a static member for ``static_grace_ms``
    after the member's session (the leader's setting applies), so a restart moves no partitions.

    The watchdog closes the session of a member that is alive but makes no progress: the same records have been in
    flight, or the same listener hook has been running, for ``max_poll_interval_ms``, or the event loop has been blocked
    for ``loop_stall_ms``. 0 disables either limit. Both limits are five minutes by default, which is generous: if the
    watchdog stops a member that is merely slow, another member gets the records again, and may be as slow.

    ``capacity`` is the share of the load that this member gets, in relation to the capacities of other members.
    ``rack`` is the rack where the member runs. Only some allocators use these two settings.

    ``client`` names the kind of program for tools. ``job`` becomes part of the member id, for programs that operators
    could not identify by the host alone.

    ``in_zookeeper`` is False if brokers coordinate the group. Such a group may have any name, as for other clients.
    """

    group: str
    in_zookeeper: bool = True
    instance_id: str | None = None
    capacity: float = 1.0
    rack: str | None = None
    client: str = "tornado"
    job: str | None = None
    store: str = "zookeeper"
    mode: str = "cooperative"
    auto_offset_reset: ResetPolicy = "earliest"
    debounce: DebounceConfig = DebounceConfig()
    reconcile_interval_ms: int = _whole(45_000, 1)
    auto_commit_interval_ms: int = _whole(5_000, 1)
    autocommit: bool = True
    drain_alarm_ms: int = _whole(30_000, 1)
    allocator_timeout_ms: int = _whole(30_000, 1)
    max_poll_interval_ms: int = _whole(300_000, 0)
    loop_stall_ms: int = _whole(300_000, 0)
    static_grace_ms: int = _whole(60_000, 0)
    retry_backoff_ms: int = _whole(100, 1)

    def __post_init__(self) -> None:
        if self.in_zookeeper:
            check_name(self.group, "group")
        elif not isinstance(self.group, str) or not self.group:
            raise ConfigError(f"group: {self.group!r} given; expected the name of a group")
        if self.instance_id is not None:
            check_name(self.instance_id, "instance_id")
        if self.job is not None:
            check_name(self.job, "job")
        check_capacity(self.capacity)
        check_rack(self.rack)
        if self.store not in STORES:
            raise ConfigError(f"store: {self.store!r} given; expected {' or '.join(map(repr, STORES))}")
        if not isinstance(self.autocommit, bool):
            raise ConfigError(f"autocommit: {self.autocommit!r} given; expected True or False")
        _check_reset_policy(self.auto_offset_reset)
        if self.mode != "cooperative":
            raise ConfigError(f"mode: {self.mode!r} given; expected 'cooperative'")
        _check_numbers(self)

    @property
    def member_settings(self) -> dict[str, int]:
        """The settings that may differ from member to member, for operators, by name. A bool is 0 or 1."""
        names = (
            "static_grace_ms",
            "max_poll_interval_ms",
            "loop_stall_ms",
            "drain_alarm_ms",
            "allocator_timeout_ms",
            "reconcile_interval_ms",
            "autocommit",
            "auto_commit_interval_ms",
            "retry_backoff_ms",
        )
        debounce = {f"debounce.{each.name}": getattr(self.debounce, each.name) for each in fields(DebounceConfig)}
        return debounce | {name: getattr(self, name) for name in names}

    @property
    def changed_settings(self) -> dict[str, int]:
        """The settings of ``member_settings`` that differ from their defaults."""
        defaults = GroupConfig(group="-").member_settings
        return {name: value for name, value in self.member_settings.items() if value != defaults[name]}


#: Larger than any realistic ratio of two members.
_LARGEST_CAPACITY = 1_000_000


def check_capacity(given: object) -> float:
    """
    Return a member's capacity unchanged if it is a number from 0 to a million.

    Raises:
        ConfigError: The capacity is not such a number.
    """
    if not is_number(given) or not 0 <= given <= _LARGEST_CAPACITY:
        raise ConfigError(f"capacity: {given!r:.80} given; expected a number from 0 to {_LARGEST_CAPACITY:,}")
    return given


def check_rack(given: object, setting: str = "rack") -> str | None:
    """
    Return the name of a rack unchanged if it is None or a text of 1 to 255 characters.

    Raises:
        ConfigError: The name is not None, and not such a text.
    """
    if given is None or (isinstance(given, str) and 0 < len(given) <= _LONGEST_TOPIC):
        return given
    raise ConfigError(
        f"{setting}: {given!r:.80} given; expected the name of a rack, of 1 to {_LONGEST_TOPIC} characters"
    )


def is_http_url(text: str) -> bool:
    """Return whether a text is a URL of HTTP or HTTPS with a legal host and port, and without a user."""
    with suppress(ValueError):
        parts = urlsplit(text)
        # A bad port raises an error when it is asked for. Every look-up of a name encodes it for DNS.
        _ = parts.port, (parts.hostname or "").encode("idna")
        return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    return False
