"""Convert the keyword arguments that all clients share into settings, and check them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypedDict, Unpack

from kiel_groups.config import KAFKA_PORT, BrokerConfig, parse_hosts
from kiel_groups.constants import SUPPORTED_COMPRESSION
from kiel_groups.errors import ConfigError
from kiel_groups.wire.codecs.compression import codec_by_name, codec_by_number

__all__ = [
    "BrokerSettings",
    "broker_config",
    "check_close_timeout",
    "check_functions",
    "check_on_bad_record",
    "compression_name",
]


class BrokerSettings(TypedDict, total=False):
    """Settings of the connections to brokers. ``BrokerConfig`` describes each setting, with its unit and default."""

    client_id: str
    connect_timeout_ms: int
    request_timeout_ms: int
    backoff_ms: int
    max_backoff_ms: int
    metadata_max_age_ms: int


def broker_config(brokers: str | Iterable[str], **settings: Unpack[BrokerSettings]) -> BrokerConfig:
    """
    Make a client's settings from its arguments.

    Args:
        brokers: ``host`` or ``host:port`` (9092 by default), in a list or a comma-separated string.
        settings: The settings that differ from the defaults.

    Raises:
        ConfigError: There is no address, or an address or a setting is not valid.
    """
    return BrokerConfig(hosts=parse_hosts(brokers, KAFKA_PORT, "brokers"), **settings)


def check_functions(**settings: Callable[..., Any] | None) -> None:
    """
    Check that a client's function arguments can be called. None stands for the client's default.

    Raises:
        ConfigError: An argument cannot be called.
    """
    for setting, function in settings.items():
        if function is not None and not callable(function):
            raise ConfigError(f"{setting}: {function!r} given; expected a function")


def check_close_timeout(timeout_s: object) -> None:
    """
    Check how long a consumer's close may take.

    Raises:
        ConfigError: It is neither None nor seconds.
    """
    if timeout_s is not None and not (isinstance(timeout_s, (int, float)) and timeout_s >= 0):
        raise ConfigError(f"close(): timeout_s: {timeout_s!r} given; expected seconds, at least 0, or None")


def check_on_bad_record(on_bad_record: object) -> None:
    """
    Check what a consumer is to do with bad records.

    Raises:
        ConfigError: It is neither "raise" nor "skip" nor a function.
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
