"""What kiel's programs read off a client: its settings, as they were given, and where it stands."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

from kiel_groups.config import FetchConfig, ProducerConfig

__all__ = ["ConsumerAttributes", "ProducerAttributes"]


class ConsumerAttributes:
    """Of both consumers; all of them for reading only."""

    _fetching: FetchConfig
    _deserializer: Callable[[bytes], Any] | None

    @property
    def name(self) -> str:
        """This host, and a number that no other consumer of this process has."""
        return f"{socket.gethostname()}:{id(self)}"

    @property
    def deserializer(self) -> Callable[[bytes], Any]:
        """What ``consume()`` makes values with."""
        return self._deserializer or json.loads

    @property
    def max_wait_time(self) -> int:
        """How long a broker may wait for ``min_bytes``, in milliseconds."""
        return self._fetching.max_wait_ms

    @property
    def min_bytes(self) -> int:
        """How many bytes a broker waits for."""
        return self._fetching.min_bytes

    @property
    def max_bytes(self) -> int:
        """How many bytes one answer may hold."""
        return self._fetching.max_bytes


class ProducerAttributes:
    """Of the producer; all of them for reading only."""

    _config: ProducerConfig

    @property
    def batch_size(self) -> int:
        """How many records wait for each other."""
        return self._config.batch_size

    @property
    def compression(self) -> str | None:
        """The codec's name."""
        return self._config.compression

    @property
    def required_acks(self) -> int:
        """How many replicas are to have a record: -1 for all that are in sync."""
        return self._config.required_acks

    @property
    def ack_timeout(self) -> int:
        """How long a broker may wait for its replicas, in milliseconds."""
        return self._config.ack_timeout_ms
