"""What a cluster in KRaft mode has beside its brokers: an id, and a controller if it has several brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Unpack

from kiel_groups.broker_admin import topic_admin
from kiel_groups.broker_admin.broker_session import BrokerSession, in_session
from kiel_groups.embedded.servers.broker_links import BrokerLinks
from kiel_groups.embedded.servers.kafka_broker import BrokerSettings, KafkaBroker
from kiel_groups.embedded.servers.kraft_servers import KRaftBroker, KRaftController, cluster_id
from kiel_groups.errors import ConfigError, ServerError

__all__ = ["KRaftMode"]

#: How long brokers may take for an answer, and to know each other after a start, in seconds.
_LIMIT_S = 30.0


class KRaftMode:
    """
    The controller of a cluster, and the work on its topics.

    Args:
        brokers: The number of brokers. A single broker is its own controller.
        version: Kafka's version.
        data: The folder of kept data, or None.
    """

    kind: dict[str, object]

    def __init__(self, brokers: int, version: str, data: Path | None) -> None:
        self._cluster_id = cluster_id(data)
        self._controller = KRaftController(self._cluster_id, version) if brokers > 1 else None
        self.kind = {}

    @property
    def servers(self) -> Sequence[KRaftController]:
        return [self._controller] if self._controller is not None else []

    def links(self, brokers: Sequence[Callable[[], str]]) -> BrokerLinks:
        controller = self._controller
        if controller is None:
            raise ConfigError(
                "cuttable_brokers given for a broker that is its own controller; expected 2 brokers or more"
            )
        controller.links = BrokerLinks(brokers, controller=lambda: controller.address)
        return controller.links

    def start(self) -> None:
        for server in self.servers:
            server._start()

    def close(self, *, gracefully: bool) -> None:
        for server in self.servers:
            if not gracefully:
                server._kill()
            server._close()

    def broker(self, number: int, **settings: Unpack[BrokerSettings]) -> KafkaBroker:
        return KRaftBroker(self._cluster_id, number, controller=self._controller, **settings)

    def create_topic(self, brokers: Sequence[str], topic: str, partitions: int, replication: int) -> None:
        _at(brokers, lambda session: topic_admin.create_topic(session, topic, partitions, replication))

    def grow_topic(self, brokers: Sequence[str], topic: str, partitions: int) -> None:
        _at(brokers, lambda session: topic_admin.grow_topic(session, topic, partitions))

    def delete_topic(self, brokers: Sequence[str], topic: str) -> None:
        _at(brokers, lambda session: topic_admin.delete_topic(session, topic))


def _at(brokers: Sequence[str], change: Callable[[BrokerSession], Awaitable[None]]) -> None:
    """Change a topic, when all these brokers know each other: a change is complete when each of them knows it."""
    if not brokers:
        raise ServerError("no broker of the cluster runs; start one")

    async def work(session: BrokerSession) -> None:
        await session.await_brokers(len(brokers), _LIMIT_S)
        await change(session)

    in_session(",".join(brokers), _LIMIT_S, work)
