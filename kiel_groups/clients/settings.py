"""The keyword arguments that all clients share, and the settings made of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict, Unpack

from kiel_groups.config import KAFKA_PORT, BrokerConfig, parse_hosts

__all__ = ["BrokerSettings", "broker_config"]


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
    return BrokerConfig(hosts=parse_hosts(brokers, KAFKA_PORT, "brokers"), **settings)
