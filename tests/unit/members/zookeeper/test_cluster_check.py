"""The check of a member that starts: are the brokers those of ZooKeeper?"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.config import HostPort
from kiel_groups.errors import ConfigError, CoordinationError, NoBrokersError, SessionLostError
from kiel_groups.group.cluster_identity import ClusterIdentity
from kiel_groups.group.znodes.layout import BROKER_IDS, CLUSTER_ID, TOPICS
from kiel_groups.members.zookeeper.registration import check_cluster

pytestmark = pytest.mark.unit

ZNODES = {
    f"{BROKER_IDS}/1": b'{"version":1,"host":"ours","port":9092}',
    CLUSTER_ID: b'{"version":"1","id":"A"}',
    f"{TOPICS}/orders": b'{"version":1,"partitions":{"0":[1]}}',
}


class FakeSession:
    """Reads fixed znodes; the read of a path that ``fails`` raises an error."""

    def __init__(self, znodes: dict[str, bytes] = ZNODES, fails: dict[str, Exception] | None = None) -> None:
        self.znodes, self.fails, self.read = znodes, fails or {}, list[str]()

    async def get(self, path: str) -> Any:
        self.read.append(path)
        if path in self.fails:
            raise self.fails[path]
        return SimpleNamespace(data=self.znodes[path]) if path in self.znodes else None

    async def get_many(self, paths: Sequence[str]) -> list[Any]:
        return [await self.get(path) for path in paths]

    async def children(self, path: str) -> list[str]:
        await self.get(path)
        return [each.rpartition("/")[2] for each in self.znodes if each.startswith(f"{path}/")]


class FakeCluster:
    """Brokers that name an address, and answer with an identity, or not at all."""

    def __init__(self, host: str, answer: ClusterIdentity | None = None, asked: str = "ours") -> None:
        brokers = {1: frozenset({HostPort(host, 9092)})} if host else {}
        self.known_identity = ClusterIdentity(brokers, asked=frozenset({HostPort(asked, 9092)}))
        self._answer = answer
        self.asked_ids: list[bool] = []

    async def identity(self, *, with_id: bool) -> ClusterIdentity:
        self.asked_ids.append(with_id)
        if self._answer is None:
            raise NoBrokersError("no broker answered")
        return self._answer._replace(brokers=self.known_identity.brokers, asked=self.known_identity.asked)


async def check(session: FakeSession, cluster: FakeCluster) -> None:
    await check_cluster(cast(Any, session), cast(ClusterMetadata, cluster))


async def test_brokers_with_registered_addresses_cost_one_round_trip() -> None:
    """Nothing else is read, and no broker is asked."""
    session, cluster = FakeSession(), FakeCluster("ours")
    await check(session, cluster)
    assert (session.read, cluster.asked_ids) == ([f"{BROKER_IDS}/1"], [])
    await check(session, FakeCluster(""))
    await check(FakeSession({}), FakeCluster("other"))


async def test_another_cluster_is_refused() -> None:
    """The error names both sides. Brokers that have an id are not those of a ZooKeeper without one."""
    other = FakeCluster("other", ClusterIdentity({}, {"orders": {0: (1,)}}, "B"))
    with pytest.raises(
        ConfigError, match=r"they name other:9092, and ZooKeeper registers ours:9092; .* id A, and .* B\."
    ):
        await check(FakeSession(), other)
    assert other.asked_ids == [True]
    without_id = {path: data for path, data in ZNODES.items() if path != CLUSTER_ID}
    other = FakeCluster("other", ClusterIdentity({}, {"bids": {0: (1,)}}))
    with pytest.raises(ConfigError, match="ZooKeeper has the topics orders, and the brokers have bids"):
        await check(FakeSession(without_id), other)
    other = FakeCluster("other", ClusterIdentity({}, {"orders": {0: (1,)}}, "B"))
    with pytest.raises(ConfigError, match="ZooKeeper has no cluster id, and the brokers have B"):
        await check(FakeSession(without_id), other)


async def test_a_proxy_and_what_cannot_be_read_refuse_nothing() -> None:
    """The topics behind a proxy are the same; without an answer, or where an ACL denies reading, the member joins."""
    await check(FakeSession(), FakeCluster("proxy", ClusterIdentity({}, {"orders": {0: (1,)}})))
    await check(FakeSession(), FakeCluster("other"))
    denied = {path: CoordinationError("denied") for path in (BROKER_IDS, TOPICS)}
    await check(FakeSession(fails=denied), FakeCluster("other", ClusterIdentity({}, {"bids": {0: (1,)}})))


async def test_what_cannot_be_told_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Brokers of 0.8 whose cluster has no topic name no broker; the address at which they were asked may be known."""
    await check(FakeSession(), FakeCluster("", ClusterIdentity({}), asked="ours"))
    assert caplog.messages == []
    await check(FakeSession(), FakeCluster("", ClusterIdentity({}), asked="other"))
    assert [each.partition(",")[0] for each in caplog.messages] == [
        "not known whether brokers and ZooKeeper are of one cluster"
    ]


async def test_a_session_that_ends_meanwhile_is_reported() -> None:
    """The next session checks again."""
    with pytest.raises(SessionLostError):
        await check(FakeSession(fails={TOPICS: SessionLostError("over")}), FakeCluster("other", ClusterIdentity({})))
