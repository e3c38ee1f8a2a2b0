"""Convert and check the arguments of clients' constructors and methods."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from os import PathLike
from ssl import SSLContext
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack

from kiel_groups.broker_security import check_security
from kiel_groups.config import KAFKA_PORT, BrokerConfig, check_name, is_number, is_whole, parse_hosts
from kiel_groups.constants import SUPPORTED_COMPRESSION
from kiel_groups.errors import ArgumentTypeError, ConfigError
from kiel_groups.group.subscription import check_offset
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.codecs import codec_by_name, codec_by_number

P = ParamSpec("P")
T = TypeVar("T")

#: Settings of kafka-python and aiokafka, and the argument of this package that has the same meaning.
_RENAMED = {
    "bootstrap_servers": "brokers",
    "group_id": "group",
    "group_instance_id": "instance_id",
    "client_rack": "rack",
    "enable_auto_commit": "autocommit",
    "value_deserializer": "deserializer",
    "fetch_max_wait_ms": "max_wait_time",
    "fetch_min_bytes": "min_bytes",
    "fetch_max_bytes": "max_bytes",
    "max_partition_fetch_bytes": "max_message_bytes",
    "partition_assignment_strategy": "partition_allocator",
    "reconnect_backoff_ms": "backoff_ms",
    "reconnect_backoff_max_ms": "max_backoff_ms",
    "value_serializer": "serializer",
    "acks": "required_acks",
    "compression_type": "compression",
    "buffer_memory": "max_buffered_bytes",
}

#: What to do instead, for settings without a counterpart.
_INSTEAD = {
    "topics": "pass the topics to subscribe()",
    "consumer_timeout_ms": "use getmany(timeout_ms=...)",
    "max_poll_records": "use getmany(max_records=...)",
    "group_id": "this client has no group (GroupedConsumer has)",
    "enable_auto_commit": "this client does not commit (GroupedConsumer does)",
    "key_serializer": "give produce() the key as text, which is sent as UTF-8, or as bytes",
    "ssl_ciphers": "pass an ssl_context",
    "ssl_crlfile": "pass an ssl_context",
    "sasl_kerberos_service_name": "Kerberos is not offered",
    "sasl_oauth_token_provider": "OAUTHBEARER is not offered",
    "api_version": "the versions of Kafka 0.8 are used; omit it",
}


def check_setting_names(init: Callable[P, None]) -> Callable[P, None]:
    """Decorate a client's constructor, so that an unknown argument raises a ConfigError that says what to do."""
    parameters = inspect.signature(init).parameters.values()
    known = {
        each.name for each in parameters if each.kind is not each.VAR_KEYWORD
    } | BrokerSettings.__annotations__.keys()

    @functools.wraps(init)
    def checked(*args: P.args, **settings: P.kwargs) -> None:
        if unknown := [name for name in settings if name not in known]:
            raise ConfigError("; ".join(f"{name}: there is no such setting{_hint(name, known)}" for name in unknown))
        init(*args, **settings)

    return checked


def _hint(name: str, known: set[str]) -> str:
    # confluent-kafka writes dots: "bootstrap.servers".
    name = name.replace(".", "_")
    if name in known:
        return f", it is {name} here"
    if _RENAMED.get(name) in known:
        return f", it is {_RENAMED[name]} here"
    if name in _INSTEAD:
        return f", {_INSTEAD[name]}"
    near = get_close_matches(name, sorted(known), 1)
    return f", did you mean {near[0]}?" if near else ""


class SecuritySettings(TypedDict, total=False):
    """The credentials and the TLS settings of brokers, and the file with them. ``BrokerConfig`` describes each one."""

    security: str | PathLike[str] | None
    security_protocol: str | None
    ssl_context: SSLContext | None
    ssl_check_hostname: bool | None
    ssl_cafile: str | PathLike[str] | None
    ssl_certfile: str | PathLike[str] | None
    ssl_keyfile: str | PathLike[str] | None
    ssl_password: str | None
    sasl_mechanism: str | None
    sasl_plain_username: str | None
    sasl_plain_password: str | None


class BrokerSettings(SecuritySettings, total=False):
    """Settings of the connections to brokers. ``BrokerConfig`` describes each setting, with its unit and default."""

    client_id: str
    connect_timeout_ms: int
    request_timeout_ms: int
    backoff_ms: int
    max_backoff_ms: int
    metadata_max_age_ms: int


def broker_config(brokers: str | Iterable[str], **settings: Unpack[BrokerSettings]) -> BrokerConfig:
    """
    Create the settings of a client's broker connections from its arguments.

    Args:
        brokers: ``host`` or ``host:port`` (9092 by default), in a list or a comma-separated string.
        settings: The settings that differ from the defaults.

    Raises:
        ConfigError: There is no address, or an address or a setting is not valid. Or the file with the credentials, or
            a certificate, cannot be read or has a mistake.
    """
    config = BrokerConfig(hosts=parse_hosts(brokers, KAFKA_PORT, "brokers"), **settings)
    check_security(config)
    return config


def check_functions(**settings: Callable[..., Any] | None) -> None:
    """
    Check that a client's function arguments can be called. None means the client's default.

    Raises:
        ConfigError: An argument cannot be called.
    """
    for setting, function in settings.items():
        if function is not None and not callable(function):
            raise ConfigError(f"{setting}: {function!r} given; expected a function")


def check_converters(**settings: Callable[..., Any] | None) -> None:
    """
    Check a client's functions that convert keys and values, as ``check_functions`` does.

    Raises:
        ConfigError: An argument cannot be called, or is a coroutine function, whose result would be the value.
    """
    check_functions(**settings)
    for setting, function in settings.items():
        if inspect.iscoroutinefunction(function):
            raise ConfigError(f"{setting}: the coroutine function {function!r} given; expected a plain function")


def check_close_timeout(timeout_s: object) -> None:
    """
    Check the argument ``timeout_s`` of a consumer's ``close()``.

    Raises:
        ConfigError: The time is neither None nor a number of seconds from 0 on.
    """
    if timeout_s is not None and (not is_number(timeout_s) or timeout_s < 0):
        raise ConfigError(f"close(): timeout_s: {timeout_s!r} given; expected seconds, at least 0, or None")


def check_on_bad_record(on_bad_record: object) -> None:
    """
    Check the setting ``on_bad_record`` of a consumer.

    Raises:
        ConfigError: The choice is neither "raise" nor "skip" nor a function.
    """
    if on_bad_record not in ("raise", "skip") and (not callable(on_bad_record) or isinstance(on_bad_record, type)):
        raise ConfigError(
            f"on_bad_record: {on_bad_record!r} given; expected 'raise', 'skip', or a function of the record and the"
            " error"
        )


def compression_name(compression: str | int | None) -> str | None:
    """
    Return the name of a compression codec, given its name or its number. Return None for None.

    Raises:
        ConfigError: There is no such codec.
    """
    if compression is None:
        return None
    if type(compression) is int and compression in SUPPORTED_COMPRESSION:
        return codec_by_number(compression).name
    return codec_by_name(str(compression)).name


#: Times are int64 in the protocol.
_TIMES = 1 << 63


def is_partition(given: object) -> bool:
    """Return whether an argument is one partition: a TopicPartition, or a tuple of a topic and a number."""
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and not isinstance(given[1], str)


def partition_of(given: object, call: str) -> TopicPartition:
    """
    Return the partition that an application passed, as a TopicPartition or a plain tuple.

    Raises:
        ArgumentTypeError: The argument is not a TopicPartition or a tuple of a topic and a whole number. The error is a
            TypeError and a ConfigError.
        ConfigError: The topic's name is not legal, or the number is negative.
    """
    expected = f"{call}: {given!r} given; expected TopicPartition(topic, number of at least 0)"
    if not isinstance(given, tuple) or len(given) != 2:
        raise ArgumentTypeError(expected)
    topic, number = given
    if not isinstance(topic, str) or type(number) is not int:
        raise ArgumentTypeError(expected)
    if number < 0:
        raise ConfigError(expected)
    return TopicPartition(check_name(topic, "topic"), number)


def partitions_of(given: object, call: str) -> list[TopicPartition]:
    """
    Return the partitions that an application passed, without duplicates.

    Raises:
        ArgumentTypeError: The argument is not an iterable of partitions, or is a single partition. The error is a
            TypeError and a ConfigError.
        ConfigError: A topic's name is not legal, or a number is negative.
    """
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes)) or is_partition(given):
        raise ArgumentTypeError(
            f"{call}: {given!r} given; expected a list of partitions, [TopicPartition(topic, number)]"
        )
    return list(dict.fromkeys(partition_of(each, call) for each in given))


def times_of(given: object, call: str) -> dict[TopicPartition, int]:
    """
    Return the times that an application passed, by partition, in whole milliseconds since 1970.

    Like kafka-python, accept fractions, such as ``time.time() * 1000``, and drop the digits after the point.

    Raises:
        ArgumentTypeError: The argument is not a mapping of partitions to numbers. The error is a TypeError and a
            ConfigError.
        ConfigError: A time is negative, or beyond the largest time of the protocol.
    """
    return _by_partition(given, call, "milliseconds since 1970", _time_of)


def _time_of(given: object, where: str) -> int:
    expected = f"{where}: {given!r} given; expected milliseconds since 1970"
    if not is_whole(given) and not isinstance(given, float):
        raise ArgumentTypeError(expected)
    # Also False for a NaN.
    if not 0 <= given < _TIMES:
        raise ConfigError(f"{expected}; beginning_offsets and end_offsets return the ends of the log")
    return int(given)


def offsets_of(given: object, call: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """
    Return the next offsets that an application passed, by partition.

    Raises:
        ArgumentTypeError: The argument is not a mapping, or a key is not a partition. The error is a TypeError and a
            ConfigError.
        ConfigError: A topic's name is not legal, or a partition's number is negative. Or a value is not a whole number,
            an OffsetAndMetadata, or a tuple of an offset and a text. Or an offset is negative, or beyond the largest
            offset of the protocol.
    """
    return _by_partition(given, call, "the next offset to read", _offset_of)


def _by_partition(given: object, call: str, what: str, convert: Callable[[object, str], T]) -> dict[TopicPartition, T]:
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(f"{call}: {given!r} given; expected a dict of TopicPartition(topic, number) to {what}")
    return {partition_of(each, call): convert(value, f"{call}: {each}") for each, value in given.items()}


def _offset_of(given: object, where: str) -> OffsetAndMetadata:
    offset, metadata = given, ""
    if isinstance(given, tuple):
        if len(given) != 2 or not (given[1] is None or isinstance(given[1], str)):
            raise ConfigError(f"{where}: {given!r} given; expected OffsetAndMetadata(offset, text)")
        offset, metadata = given[0], given[1] or ""
    return OffsetAndMetadata(check_offset(offset, where), metadata)
