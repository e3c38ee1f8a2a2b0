"""The keyword arguments that all clients share, and the settings made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, TypedDict, Unpack

from kiel_groups.config import KAFKA_PORT, BrokerConfig, parse_hosts
from kiel_groups.constants import SUPPORTED_COMPRESSION
from kiel_groups.errors import ConfigError
from kiel_groups.wire.codecs.compression import codec_named, codec_numbered

__all__ = ["BrokerSettings", "broker_config", "check_functions", "compression_name"]


class BrokerSettings(TypedDict, total=False):
    """How to talk to brokers; see ``BrokerConfig`` for what each means, its unit and its default."""

    client_id: str
    connect_timeout_ms: int
    request_timeout_ms: int
    backoff_ms: int
    max_backoff_ms: int
    metadata_max_age_ms: int


def broker_config(brokers: str | Iterable[str], **settings: Unpack[BrokerSettings]) -> BrokerConfig:
    """
    The settings of a client.

    Args:
        brokers: ``host`` or ``host:port`` (9092 if left out), in a list or a comma-separated string.
        settings: What differs from the defaults.

    Raises:
        ConfigError: No address, one that is none, or a setting that cannot work.
    """
    if unknown := sorted(settings.keys() - BrokerSettings.__annotations__.keys()):
        near = get_close_matches(unknown[0], BrokerSettings.__annotations__, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; known ones are {', '.join(BrokerSettings.__annotations__)}"
        raise ConfigError(f"{unknown[0]}: there is no such setting{hint}")
    return BrokerConfig(hosts=parse_hosts(brokers, KAFKA_PORT, "brokers"), **settings)


def check_functions(**settings: Callable[..., Any] | None) -> None:
    """
    Make sure that what a client is to call can be called; None stands for the client's own way.

    Raises:
        ConfigError: It cannot.
    """
    for setting, function in settings.items():
        if function is not None and not callable(function):
            raise ConfigError(f"{setting}: {function!r} given; expected a function")


def compression_name(compression: str | int | None) -> str | None:
    """
    The name of a codec that was given by its name or its number.

    Raises:
        ConfigError: There is no such codec.
    """
    if compression is None:
        return None
    if type(compression) is int and compression in SUPPORTED_COMPRESSION:
        return codec_numbered(compression).name
    return codec_named(str(compression)).name
