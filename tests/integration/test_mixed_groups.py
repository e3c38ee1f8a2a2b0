"""Groups that brokers coordinate, with members of kiel-groups, of Java's kafka-clients and of kafka-python."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from kiel_groups import GroupedConsumer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import GroupConfigError
from tests.helpers.mixed_groups import MixedGroup
from tests.helpers.servers import played_kafkas, plays_all_variants
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

PARTITIONS = 6


async def new_group(cluster: Cluster, release: str, unique: Unique) -> MixedGroup:
    topic = unique("topic")
    await cluster.create_topic(topic, PARTITIONS)
    return MixedGroup(cluster, release, unique("group"), topic, PARTITIONS)


class Variant(NamedTuple):
    """The clients of three members, in the order of their starts, what each offers, and the assignor that is chosen."""

    clients: tuple[str, str, str]
    offered: tuple[tuple[str, ...], ...]
    chosen: str


#: The first and the third member lead, so each client leads in one of the first two variants.
VARIANTS = (
    Variant(("ours", "java", "kafka-python"), (("sticky", "range"), ("range",), ("range",)), "range"),
    Variant(
        ("java", "kafka-python", "ours"), (("roundrobin",), ("roundrobin",), ("range", "roundrobin")), "roundrobin"
    ),
    Variant(("kafka-python", "ours", "java"), (("range", "roundrobin"),) * 3, "range"),
)


#: Each client is a member on each release; which of them leads is a slower variant.
PLAYED = [
    (version, variant)
    for version in played_kafkas()
    for variant in (VARIANTS if plays_all_variants() else VARIANTS[:1])
]


@pytest.mark.parametrize(
    ("coordinating_version", "variant"),
    PLAYED,
    ids=[f"kafka{version}-{each.clients[0]} and {each.clients[2]} lead" for version, each in PLAYED],
    indirect=["coordinating_version"],
)
async def test_members_of_three_clients_share_a_group(
    coordinating_cluster: Cluster, coordinating_version: str, unique: Unique, variant: Variant
) -> None:
    """
    Members of three clients join and leave while records are produced, and two of them lead. Every partition is owned
    once, by the assignor that all members offer, and every record is delivered once. After the leader is killed with
    -9, the others get its partitions, and only records that it had delivered are delivered again.
    """
    clients, offered, chosen = variant
    with await new_group(coordinating_cluster, coordinating_version, unique) as group:
        async with group.producing():
            first = group.start(clients[0], *offered[0])
            await group.settled()
            second = group.start(clients[1], *offered[1])
            third = group.start(clients[2], *offered[2])
            assert (await group.settled()).protocol == chosen
            await second.leave()
            await group.settled()
            # The third member is the only one left, and leads.
            await first.leave()
            await group.settled()
            group.start(clients[0], *offered[0])
            group.start(clients[1], *offered[1])
            await group.settled()
        assert set((await group.delivered()).values()) == {1}
        async with group.producing():
            await third.kill()
            await group.settled()
        counts = await group.delivered()
        again = {place for place, count in counts.items() if count > 1}
        assert again <= set(third.delivered)


async def test_a_member_without_a_common_assignor_is_refused(
    coordinating_cluster: Cluster, coordinating_version: str, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A member that offers no assignor of the group's members gets an error with the assignors that it offers, and does
    not announce another try. The group of kafka-python does not notice it.
    """
    with await new_group(coordinating_cluster, coordinating_version, unique) as group:
        group.start("kafka-python", "roundrobin")
        found = await group.settled()
        consumer = GroupedConsumer(
            coordinating_cluster.brokers, found.group, coordination="brokers", partition_allocator=["range", "sticky"]
        )
        await consumer.connect()
        with pytest.raises(GroupConfigError, match=r"it offers range, kiel-sticky, and the members of the group"):
            await consumer.subscribe(group.topic)
        await consumer.close()
        assert "; retrying" not in caplog.text
        assert (await group.settled()).members == found.members


async def test_a_member_of_another_client_without_a_common_assignor_disturbs_no_member_of_ours(
    coordinating_cluster: Cluster, coordinating_version: str, unique: Unique
) -> None:
    """A member of kafka-python that offers no assignor of our group is refused, and our member keeps its partitions."""
    with await new_group(coordinating_cluster, coordinating_version, unique) as group:
        member = group.start("ours", "sticky")
        found = await group.settled()
        other = group.start("kafka-python", "range")
        await eventually(lambda: other.failure, "the other member is refused")
        assert other.failure.startswith("InconsistentGroupProtocolError")
        other.is_over = True
        assert (await group.settled()).members == found.members
        assert member.assignments == 1
