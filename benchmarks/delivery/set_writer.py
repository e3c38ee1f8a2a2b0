"""Write message sets as they are to a broker, so that their sizes are exact."""

from __future__ import annotations

import time
from collections.abc import Mapping

import click

from kiel_groups.config import HostPort
from kiel_groups.model import TopicPartition
from kiel_groups.spark.worker_connections import BrokerSocket
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.produce import ProduceRequest

__all__ = ["SetWriter"]

LIMIT_S = 60.0


class SetWriter:
    """Appends message sets to the partitions of one broker, which leads them all."""

    def __init__(self, broker: str) -> None:
        host, port = broker.rsplit(":", 1)
        self._broker = BrokerSocket(HostPort(host, int(port)), "writer", connect_timeout_s=LIMIT_S)

    def append(self, sets: Mapping[TopicPartition, bytes]) -> None:
        """Append one set to each of the partitions. Repeat requests for partitions without a leader."""
        left = dict(sets)
        deadline_s = time.monotonic() + LIMIT_S
        while left:
            request = ProduceRequest(1, int(LIMIT_S * 1000), left)
            answer = self._broker.ask(request, most_bytes=1 << 20, timeout_s=LIMIT_S)
            refused = {each: found.error for each, found in answer.items() if found.error != NO_ERROR}
            if refused and time.monotonic() > deadline_s:
                raise click.ClickException(f"the broker refuses messages: {next(iter(refused.values()))}")
            # A broker learns only after a moment that it is a leader.
            left = {each: left[each] for each in refused}

    def close(self) -> None:
        self._broker.close()
