"""Read and write the offsets that a group has in Kafka, as another client would."""

from __future__ import annotations

from collections.abc import Mapping

from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import BrokerConfig, parse_hosts
from kiel_groups.embedded import Cluster
from kiel_groups.members.brokers.offset_requests import StoredInKafka
from kiel_groups.members.partition_handler import StoreAnswer
from kiel_groups.metrics import Metrics
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.ops.loaded_groups import find_log_ends
from tests.helpers.waiting import eventually

__all__ = ["KEEPING", "OffsetsInKafka"]

#: The releases that keep offsets in Kafka, and whose groups ZooKeeper may coordinate.
KEEPING = ("0.8.2.2", "0.9.0.1")


class OffsetsInKafka:
    """
    The offsets of one group in the Kafka of a cluster; the test's own client, independent of the members.

    ``partitions`` are the partitions to read.
    """

    def __init__(self, cluster: Cluster, group: str, topic: str, partitions: int) -> None:
        self._brokers = cluster.brokers
        self._group = group
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]

    async def stored(self) -> dict[int, OffsetAndMetadata]:
        """Return the offset of each partition that has one, with its text."""
        view = await self._connected()
        try:
            read = await StoredInKafka(view, self._group, Metrics()).read(self._partitions)
        finally:
            view.close()
        assert not read.failures, read.failures
        return {partition.partition: each for partition, each in read.found.items()}

    async def offsets(self) -> dict[int, int]:
        """Return the offset of each partition that has one."""
        return {number: each.offset for number, each in (await self.stored()).items()}

    async def write(self, offsets: Mapping[int, int], text: str = "") -> None:
        """Store offsets, as a program does that is no member."""
        view = await self._connected()
        store = StoredInKafka(view, self._group, Metrics())
        topic = self._partitions[0].topic
        wanted = {TopicPartition(topic, number): OffsetAndMetadata(at, text) for number, at in offsets.items()}

        async def is_stored() -> bool:
            return set((await store.store(wanted)).values()) == {StoreAnswer.STORED}

        try:
            await eventually(is_stored, "the offsets are stored")
        finally:
            view.close()

    async def add_up_to(self, total: int, timeout_s: float = 30.0) -> None:
        """Wait until the committed offsets add up to ``total``."""

        async def do() -> bool:
            return sum((await self.offsets()).values()) == total

        await eventually(do, f"the offsets in Kafka add up to {total}", timeout_s)

    async def are_the_ends(self, timeout_s: float = 30.0) -> None:
        """Wait until the committed offsets are the ends of the logs."""
        brokers = parse_hosts(self._brokers, 9092, "brokers")

        async def do() -> bool:
            ends = (await find_log_ends(brokers, self._partitions)).offsets
            return bool(ends) and {p.partition: at for p, at in ends.items()} == await self.offsets()

        await eventually(do, "the offsets in Kafka are the ends of the logs", timeout_s)

    async def _connected(self) -> ClusterMetadata:
        view = ClusterMetadata(BrokerConfig(hosts=parse_hosts(self._brokers, 9092, "brokers")), Metrics())
        await view.refresh({self._partitions[0].topic}, "test")
        return view
