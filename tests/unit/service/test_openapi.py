"""The answers about groups of each type, with each problem, are as the description of the interface says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from kiel_groups.group.znodes.contents import Znode
from kiel_groups.group.znodes.round_contents import Offer, OfferedProtocol, RoundMember, RoundSettings, RoundState
from kiel_groups.ops.actions.cluster_address import ZOOKEEPER, ClusterAddress
from kiel_groups.ops.loaded_groups import LoadedGroups
from kiel_groups.ops.views.answers import view_coordinated_group
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.rest.server import RestServer
from kiel_groups.rest.settings import RestSettings
from kiel_groups.service.api import Api
from kiel_groups.service.cluster_state import ClusterHistory
from kiel_groups.service.served_cluster import ServedCluster
from kiel_groups.wire.consumer_protocol import ConsumerAssignment, ConsumerSubscription
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.group_requests import DescribedGroup, DescribedMember
from tests.helpers.described_answers import ask_described, description
from tests.helpers.group_snapshots import HEALTHY, LATER_MS, LOG_ENDS, PLANNED_MS, PROBLEMS, A, config

pytestmark = pytest.mark.unit

ROOT = "/kiel-groups/g"


def programs() -> GroupView:
    """Return a group of programs with one member."""
    offer = Offer("connect", (OfferedProtocol("p", b"data"),))
    member = RoundMember(member_id=A, joined=4, offer=offer, host="host", pid=17, started_at_ms=PLANNED_MS)
    state = RoundState(generation=4, state="done", leader=A, protocol="p", members=(A,), refused={"x": "it offers q"})
    znodes = {
        f"{ROOT}/members/{A}": Znode(member.encode(), 0xAAAA),
        f"{ROOT}/config": Znode(RoundSettings("connect").encode()),
        f"{ROOT}/allocation": Znode(state.encode()),
    }
    return view_group("g", znodes)


def coordinated(state: str) -> GroupView:
    """Return a group that brokers coordinate, with one member."""
    member = DescribedMember(
        *("m-1", "shop", "/10.0.0.1"), ConsumerSubscription(("t",)).encode(), ConsumerAssignment({"t": (0, 1)}).encode()
    )
    found = DescribedGroup(NO_ERROR, "g", state, "consumer", "range", (member,))
    return view_coordinated_group(found, "broker 1", {"t": (0, 1)}, {})


VIEWS = {
    "healthy": view_group("g", HEALTHY, LOG_ENDS),
    "without-log-ends": view_group("g", HEALTHY),
    "settings": view_group("g", {**HEALTHY, f"{ROOT}/config": config(allocator="sticky", drained=["x"])}, LOG_ENDS),
    "programs": programs(),
    "stable": coordinated("Stable"),
    "rebalancing": coordinated("PreparingRebalance"),
    **{kind: view_group("g", znodes, LOG_ENDS) for kind, (znodes, _) in PROBLEMS.items()},
}


@asynccontextmanager
async def serving(*views: GroupView) -> AsyncIterator[str]:
    """Serve an interface of a cluster with these groups after two loads, or before its first load. Yield its URL."""
    cluster = ServedCluster("main", ClusterAddress(ZOOKEEPER, "127.0.0.1:1", 0.1), 60.0, lambda *_: None)
    if views:
        history = ClusterHistory()
        history.take(LoadedGroups(views, 2, seen_ms=LATER_MS), 0.5)
        cluster.state = history.take(LoadedGroups(views, 2, seen_ms=LATER_MS + 90_000), 0.5)
    server = RestServer(RestSettings(port=0))
    server.start(Api({"main": cluster}).routes())
    yield server.url
    await server.close()
    cluster.stop()


async def test_answers_about_groups() -> None:
    """Each document about a group validates against its schema."""
    async with serving(*(replace(view, group=name) for name, view in VIEWS.items())) as url:
        groups = f"{url}/v1/clusters/main/groups"
        for name in VIEWS:
            for path in ("", "/members", "/allocation", "/history", "/lag", "/findings"):
                assert (await ask_described(f"{groups}/{name}{path}")).status == 200
        for path in ("/v1/clusters", "/v1/clusters/main/groups", "/healthz", "/readyz", "/v1/openapi.json"):
            assert (await ask_described(url + path)).status == 200


async def test_answers_before_the_first_load() -> None:
    """The answer that the service is not ready, and the refusals, validate against their schemas, too."""
    async with serving() as url:
        assert (await ask_described(f"{url}/readyz")).status == 503
        assert (await ask_described(f"{url}/v1/clusters/main/groups/g")).status == 503
        assert (await ask_described(f"{url}/v1/clusters")).status == 200
        assert (await ask_described(f"{url}/v1/clusters/other/groups")).status == 404


def test_changes_need_a_token() -> None:
    """The description says of each change that it needs the token, and of no read."""
    operations = [each for methods in description()["paths"].values() for each in methods.items()]
    assert {method for method, each in operations if each.get("security") == [{"token": []}]} == {
        "delete",
        "patch",
        "post",
        "put",
    }
    assert all(("security" in each) == (method != "get") for method, each in operations)
