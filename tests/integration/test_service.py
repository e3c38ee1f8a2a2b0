"""The service shows the groups of a real cluster over HTTP, tells of changes, and makes those of operators."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.simple_httpclient import HTTPStreamClosedError

from kiel_groups.embedded import Cluster
from kiel_groups.ops import zookeeper_groups
from kiel_groups.ops.actions.cluster_address import BROKERS, ZOOKEEPER, ClusterAddress
from kiel_groups.rest.settings import RestSettings
from kiel_groups.service.service import Service
from tests.helpers import rest_requests
from tests.helpers.cluster_data import committed, produce
from tests.helpers.coordinated_members import members_of
from tests.helpers.described_answers import ask_described as ask
from tests.helpers.members import group_of
from tests.helpers.rest_requests import JSON, Got, send_bytes
from tests.helpers.telegraf_input import gather
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

TOKEN = "t0ken-of-the-service"
WITH_TOKEN = {**JSON, "Authorization": f"Bearer {TOKEN}"}


@asynccontextmanager
async def serving(address: ClusterAddress, *, token: str = TOKEN, folder: Path | None = None) -> AsyncIterator[str]:
    """Run a service of one cluster, and yield the URL of that cluster when its groups are known."""
    settings = RestSettings(port=0, token=token, open_reads=True)
    service = Service(settings, {"main": address}, interval_s=1, restore_folder=folder)
    service.start()
    try:

        async def is_ready() -> bool:
            return (await ask(f"{service.url}/readyz")).status == 200

        await eventually(is_ready, "the groups are known")
        yield f"{service.url}/v1/clusters/main"
    finally:
        await service.close()


def in_zookeeper(cluster: Cluster) -> ClusterAddress:
    return ClusterAddress(ZOOKEEPER, cluster.zk_hosts, 10.0)


async def changing(url: str, method: str, body: object = None) -> Got:
    return await ask(url, method, body, WITH_TOKEN)


async def test_a_group_in_zookeeper(fresh_cluster: Cluster, unique: Unique) -> None:
    """Its members, allocation, lag, history and plan are shown, and it is in the metrics and in Burrow's answers."""
    topic, name = unique("topic"), unique("group")
    await fresh_cluster.create_topic(topic, 4)
    async with group_of(fresh_cluster, name, [topic]) as group, serving(in_zookeeper(fresh_cluster)) as url:
        await group.join()
        await group.delivered(await produce(fresh_cluster, topic, 40))

        async def shown() -> Any:
            found = (await ask(f"{url}/groups/{name}")).document
            return found if found.get("state") == "settled" and found["lag"] == 0 else None

        found = await eventually(shown, "the group is shown without lag")
        assert (found["group"], len(found["members"]), found["wrong"]) == (name, 1, [])
        (member,) = (await ask(f"{url}/groups/{name}/members")).document["members"]
        allocation = (await ask(f"{url}/groups/{name}/allocation")).document
        assert [each["owner"] for each in allocation["partitions"]] == [member["id"]] * 4
        lag = (await ask(f"{url}/groups/{name}/lag")).document
        assert (lag["lag"], len(lag["partitions"])) == (0, 4)
        assert lag["course"]
        history = (await ask(f"{url}/groups/{name}/history")).document["history"]
        assert history[0]["generation"] == allocation["generation"]
        plan = (await ask(f"{url}/groups/{name}/plan?add-member=1")).document
        assert sorted(len(each["after"]) for each in plan["members"]) == [2, 2]
        assert (await ask(f"{url}/groups/{name}/findings")).document == {"group": name, "findings": []}
        assert name in [each["group"] for each in (await ask(f"{url}/groups")).document["groups"]]
        root = url.partition("/v1/")[0]
        client = AsyncHTTPClient(force_instance=True)
        page = (await client.fetch(f"{root}/metrics")).body.decode()
        assert f'kiel_group_owned_partitions{{cluster="main",group="{name}"}} 4.0' in page
        measured = await gather(root)
        (of_group,) = [each for each in measured if each.name == "burrow_group" and each.tags["group"] == name]
        wanted = {"status": "OK", "partition_count": 4, "total_lag": 0, "offset": 40}
        assert {field: of_group.fields[field] for field in wanted} == wanted
        ends = [each.fields["offset"] for each in measured if each.tags.get("topic") == topic and len(each.fields) == 1]
        assert sum(map(int, ends)) == 40


@pytest.mark.parametrize("most_whole", [500, 3])
async def test_a_change_is_an_event(
    fresh_cluster: Cluster, unique: Unique, monkeypatch: pytest.MonkeyPatch, most_whole: int
) -> None:
    """
    A stream of events names a group soon after a member has joined, long before all groups are read again. A large
    group is read in part first.
    """
    monkeypatch.setattr(zookeeper_groups, "_MOST_WHOLE", most_whole)
    topic, name = unique("topic"), unique("group")
    await fresh_cluster.create_topic(topic, 4)
    async with group_of(fresh_cluster, name, [topic]) as group:
        await group.join()
        settings = RestSettings(port=0)
        service = Service(settings, {"main": in_zookeeper(fresh_cluster)}, interval_s=3600)
        service.start()
        received = bytearray()
        client = AsyncHTTPClient(force_instance=True)
        request = HTTPRequest(f"{service.url}/v1/events", streaming_callback=received.extend, request_timeout=0)
        stream = asyncio.ensure_future(client.fetch(request))
        await eventually(lambda: b'"groups": null' in received, "the first load is an event")
        await group.join()

        def named() -> bool:
            lines = [line for line in bytes(received).splitlines() if line.startswith(b"data: ")]
            return any(name in (json.loads(line[6:])["groups"] or ()) for line in lines)

        async def shown() -> bool:
            found = (await ask(f"{service.url}/v1/clusters/main/groups/{name}")).document
            return len(found["members"]) == len(group.open_members) and found["state"] == "settled"

        await eventually(named, "the group is named")
        await eventually(shown, "the group is shown with two members that own their partitions")
        await group.members[0].stop()
        await eventually(shown, "the group is shown with one member that owns all partitions")
        await service.close()
        with suppress(HTTPStreamClosedError):
            await stream
        client.close()


async def test_changes_of_an_operator(fresh_cluster: Cluster, unique: Unique, tmp_path: Path) -> None:
    """
    Offsets are set by live members, a member is drained, settings are set, and a group is deleted and restored. What a
    change loses is in a file, too; without the file, the change is not made.
    """
    topic, name = unique("topic"), unique("group")
    await fresh_cluster.create_topic(topic, 2)
    folder = tmp_path / "restore"
    async with serving(in_zookeeper(fresh_cluster), folder=folder) as root:
        url = f"{root}/groups/{name}"
        async with group_of(fresh_cluster, name, [topic]) as group:
            await group.join()
            first = group.members[0].consumer
            await group.delivered(await produce(fresh_cluster, topic, 20))
            await group.balanced(topic, 2)
            await first.commit()
            offsets = (await ask(f"{url}/offsets")).document["offsets"]
            before = offsets[f"{topic}:1"]
            reset = {"topics": [f"{topic}:1"], "to": "earliest"}
            dry = await changing(f"{url}/offsets/reset", "POST", {**reset, "dry_run": True})
            assert dry.document["changes"] == [
                {"topic": topic, "partition": 1, "before": before, "after": 0, "note": None}
            ]
            unwritten = await changing(f"{url}/offsets/reset", "POST", reset)
            assert (unwritten.status, "nothing has changed" in unwritten.document["message"]) == (500, True)
            assert (await ask(f"{url}/offsets")).document["offsets"] == offsets
            folder.mkdir()
            made = await changing(f"{url}/offsets/reset", "POST", reset)
            assert_kept(made, folder)
            assert (made.status, made.document["by_members"], made.document["not_set"]) == (200, True, [])
            assert made.document["restore"]["offsets"] == {f"{topic}:1": before}
            await group.join()
            await group.balanced(topic, 2)
            assert first.member_id is not None
            drained = await changing(f"{url}/drain", "POST", {"member": first.member_id})
            assert [each["slot"] for each in drained.document["members"]] == [first.member_id]
            await eventually(lambda: not first.assignment(), "the drained member owns nothing")
            settings = await changing(f"{url}/config", "PATCH", {"settings": {"allocator": "sticky"}})
            assert settings.document["changes"] == [{"setting": "allocator", "before": None, "after": "sticky"}]
            assert (await changing(f"{url}/rebalance", "POST", {"reason": "by hand"})).status == 200
            assert (await ask(f"{url}/plan?host=a&host=b")).status == 400
            refused = await changing(url, "DELETE")
            assert (refused.status, "is alive" in refused.document["message"]) == (400, True)
        assert committed(fresh_cluster, name, topic) == 20
        deleted = await changing(url, "DELETE")
        assert deleted.document["restore"]["offsets"] == offsets
        assert_kept(deleted, folder)

        async def is_gone() -> bool:
            return (await ask(url)).status == 404

        await eventually(is_gone, "the group is gone")
        back = await changing(f"{url}/offsets/import", "POST", {"file": deleted.document["restore"], "topics": None})
        assert back.status == 200
        assert committed(fresh_cluster, name, topic) == 20


def assert_kept(change: Got, folder: Path) -> None:
    """Check that the answer to a change names a file with what is lost, which only its owner can read."""
    path = Path(change.document["restore_file"])
    assert (path.parent, path.stat().st_mode & 0o777) == (folder, 0o600)
    assert json.loads(path.read_text(encoding="utf-8")) == change.document["restore"]


async def test_a_group_of_brokers(coordinating_cluster: Cluster, unique: Unique) -> None:
    """A group that brokers coordinate is shown; its settings cannot be set, and its offsets only without members."""
    cluster, topic, name = coordinating_cluster, unique("topic"), unique("group")
    await cluster.create_topic(topic, 2)
    address = ClusterAddress(BROKERS, ",".join(map(str, cluster.brokers)), 10.0)
    async with serving(address) as root:
        url = f"{root}/groups/{name}"
        async with members_of(cluster, name, topic, 1, partitions=2, autocommit=False):
            await produce(cluster, topic, 20)

            async def shown() -> bool:
                found = (await ask(url)).document
                return bool(found.get("state") == "stable" and found["lag"] == 20)

            await eventually(shown, "the group is shown with its lag")
            refused = await changing(f"{url}/drain", "POST", {"host": "h"})
            assert (refused.status, "a member allocates" in refused.document["message"]) == (409, True)
            live = await changing(f"{url}/offsets/reset", "POST", {"topics": None, "to": "earliest"})
            assert (live.status, "stop them first" in live.document["message"]) == (400, True)
            given = {"topics": None, "to": "earliest", "store": "zookeeper"}
            stored = await changing(f"{url}/offsets/reset", "POST", given)
            assert (stored.status, "are in Kafka" in stored.document["message"]) == (400, True)


#: Requests that are mistakes, each with the status of its answer, and words of the answer.
MISTAKES: tuple[tuple[str, str, object, int, str], ...] = (
    ("GET", "/groups/none", None, 404, "group 'none' does not exist"),
    ("GET", "/groups/%2e%2e%2fbrokers", None, 404, "does not exist"),
    ("POST", "/groups/none/offsets/reset", {"to": "earliest"}, 400, "topics: missing"),
    (
        "POST",
        "/groups/none/offsets/reset",
        {"topics": ["a/b"], "to": "earliest"},
        400,
        "topics: 'a/b' is not a legal name",
    ),
    ("POST", "/groups/none/offsets/reset", {"topics": None, "to": "begin"}, 400, "to: 'begin' given; expected one"),
    ("POST", "/groups/none/offsets/reset", {"topics": None, "to": {"ago": "1 week"}}, 400, "ago: '1 week' given"),
    ("POST", "/groups/none/offsets/delete", {"topics": None, "store": "kafka"}, 400, "store: 'kafka' given; expected"),
    ("POST", "/groups/none/drain", {}, 400, "member: missing; expected a member or a host"),
    ("POST", "/groups/none/drain", {"host": "h", "now": True}, 400, "the body has 'now'"),
    ("POST", "/groups/..%2f..%2fbrokers/rebalance", {}, 404, "does not exist"),
    ("PATCH", "/groups/none/config", {"settings": []}, 400, "settings: expected an object"),
    ("DELETE", "/groups/none", None, 404, "does not exist"),
    ("GET", "/groups/none/plan?x=1", None, 404, "does not exist"),
)


async def test_mistakes(fresh_cluster: Cluster) -> None:
    """A mistake of a client is answered with its reason; a path leads to no znode but those of groups."""
    async with serving(in_zookeeper(fresh_cluster)) as url:
        for method, path, body, status, words in MISTAKES:
            got = await changing(f"{url}{path}", method, body)
            assert (got.status, words in got.document["message"]) == (status, True), (path, body, got.document)
        service = url.partition("/v1/")[0]
        page = await AsyncHTTPClient().fetch(f"{service}/clusters/none/groups/g", raise_error=False)
        assert (page.code, b"The service shows no cluster none." in page.body) == (404, True)
        assert b'sse-connect="/v1/events"' in page.body
        for query, status, words in (
            ("cluster=none", 404, "shows no cluster 'none'; it shows main"),
            ("topic=pv", 400, "the query has 'topic'; expected 'cluster' and 'group'"),
        ):
            refused = await rest_requests.ask(f"{service}/v1/events?{query}")
            assert (refused.status, words in refused.document["message"]) == (status, True), refused


@pytest.mark.parametrize(("token", "statuses"), [(TOKEN, {401: JSON, 404: WITH_TOKEN}), ("", {403: JSON})])
async def test_changes_need_a_token(fresh_cluster: Cluster, token: str, statuses: dict[int, dict[str, str]]) -> None:
    """Without the token, or if the service has none, nothing is changed."""
    async with serving(in_zookeeper(fresh_cluster), token=token) as url:
        for status, headers in statuses.items():
            assert (await ask(f"{url}/groups/none/rebalance", "POST", {}, headers)).status == status
        assert (await ask(f"{url}/groups")).status == 200


async def test_a_cluster_that_does_not_answer() -> None:
    """The service runs, and says why it is not ready; it is not known which groups there are."""
    service = Service(RestSettings(port=0), {"main": ClusterAddress(ZOOKEEPER, "127.0.0.1:1", 0.2)}, interval_s=1)
    service.start()

    async def reason() -> Any:
        got = await ask(f"{service.url}/readyz")
        return got.document["clusters"]["main"] if "no ZooKeeper" in got.document["clusters"]["main"] else None

    assert "127.0.0.1:1" in await eventually(reason, "the reason is known")
    assert (await ask(f"{service.url}/healthz")).status == 200
    got = await ask(f"{service.url}/v1/clusters/main/groups/g")
    assert (got.status, "not known yet" in got.document["message"]) == (503, True)
    page = "/clusters/main/groups/g"
    status, text = await send_bytes(service.url, f"GET {page} HTTP/1.0\r\n\r\n".encode())
    assert (status, b"have not been read yet" in text) == (503, True)
    assert (await ask(service.url + page, headers={"HX-Request": "true"})) == (204, None, ANY)
    await service.close()
