"""Write message sets as they are to a broker, so that their sizes are exact."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import click

from kiel_groups.config import BrokerConfig, HostPort
from kiel_groups.model import TopicPartition
from kiel_groups.spark.worker_connections import BrokerSocket
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.produce import ProduceRequest

__all__ = ["SetWriter"]

LIMIT_S = 60.0
_ANSWER_BYTES = 1 << 20
#: A single request in flight takes minutes for a topic of one partition on a busy computer.
_IN_FLIGHT = 16


class SetWriter:
    """Appends message sets to the partitions of one broker, which leads them all."""

    def __init__(self, broker: str) -> None:
        host, port = broker.rsplit(":", 1)
        self._broker = BrokerSocket(
            HostPort(host, int(port)), BrokerConfig(hosts=(), client_id="writer"), connect_timeout_s=LIMIT_S
        )

    def append(self, sets: Mapping[TopicPartition, bytes]) -> None:
        """Append one set to each of the partitions. Repeat requests for partitions without a leader."""
        left = dict(sets)
        deadline_s = time.monotonic() + LIMIT_S
        while left:
            answer = self._broker.ask(_request(left), most_bytes=_ANSWER_BYTES, timeout_s=LIMIT_S)
            refused = {each: found.error for each, found in answer.items() if found.error != NO_ERROR}
            if refused and time.monotonic() > deadline_s:
                raise click.ClickException(f"the broker refuses messages: {next(iter(refused.values()))}")
            # A broker learns only after a moment that it is a leader.
            left = {each: left[each] for each in refused}

    def append_all(self, each: Iterable[Mapping[TopicPartition, bytes]]) -> None:
        """Append the sets of each mapping, in order, with some requests in flight. A refused set is an error."""
        waiting = 0
        for sets in each:
            self._broker.send(_request(sets), most_bytes=_ANSWER_BYTES, timeout_s=LIMIT_S)
            waiting += 1
            if waiting == _IN_FLIGHT:
                self._receive()
                waiting -= 1
        for _ in range(waiting):
            self._receive()

    def _receive(self) -> None:
        for partition, found in self._broker.receive(LIMIT_S).items():
            if found.error != NO_ERROR:
                raise click.ClickException(f"the broker refuses messages of {partition}: {found.error}")

    def close(self) -> None:
        self._broker.close()


def _request(sets: Mapping[TopicPartition, bytes]) -> ProduceRequest:
    return ProduceRequest(1, int(LIMIT_S * 1000), sets)
