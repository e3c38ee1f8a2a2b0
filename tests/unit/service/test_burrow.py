"""The requests of Burrow's clients: Telegraf's input, exporters and dashboards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from kiel_groups.group.znodes.contents import Znode
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.cluster_address import ZOOKEEPER, ClusterAddress
from kiel_groups.ops.loaded_groups import LoadedGroups
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.rest.server import RestServer
from kiel_groups.rest.settings import RestSettings
from kiel_groups.service.burrow import Burrow
from kiel_groups.service.cluster_state import ClusterHistory
from kiel_groups.service.served_cluster import ServedCluster
from tests.helpers.group_snapshots import HEALTHY, LATER_MS, LOG_ENDS, A, B
from tests.helpers.rest_requests import ask
from tests.helpers.telegraf_input import Measured, gather

pytestmark = pytest.mark.unit

TOKEN = "t0ken-of-the-service"


@asynccontextmanager
async def serving(loads: int, committed: int = 10, *, token: str = "") -> AsyncIterator[str]:
    """
    Serve a cluster with a healthy group that has been loaded this often, and yield the URL.

    The group has read up to offset 10 of 12. At the last load, its offset in partition 0 is ``committed``.
    """
    cluster = ServedCluster("main", ClusterAddress(ZOOKEEPER, "z1:2181,z2:2181", 10.0), 5.0, lambda *_: None)
    history = ClusterHistory()
    for at in range(loads):
        offset = Znode(str(committed if at == loads - 1 else 10).encode(), modified_ms=LATER_MS)
        view = view_group("g", {**HEALTHY, "/consumers/g/offsets/t/0": offset}, LOG_ENDS)
        cluster.state = history.take(LoadedGroups((view,), 1, seen_ms=LATER_MS + at * 5_000), 0.1)
    server = RestServer(RestSettings(port=0, token=token))
    server.start(Burrow({"main": cluster}).routes())
    try:
        yield server.url
    finally:
        await server.close()


async def test_the_requests_of_telegraf() -> None:
    """Each request is answered with the fields and types that Telegraf reads; with a token, it is the password."""
    seen_ms = LATER_MS + 9 * 5_000
    group = {"cluster": "main", "group": "g"}
    stuck: dict[str, int | str] = {"status": "STOP", "status_code": 5, "lag": 2, "offset": 10, "timestamp": seen_ms}
    owners = [A, A, B]
    async with serving(10, token=TOKEN) as url:
        assert await gather(url, TOKEN) == [
            *(
                Measured("burrow_topic", {"cluster": "main", "topic": "t", "partition": str(at)}, {"offset": 12})
                for at in range(3)
            ),
            Measured(
                "burrow_group",
                group,
                {
                    "status": "ERR",
                    "status_code": 4,
                    "partition_count": 3,
                    "total_lag": 6,
                    "lag": 2,
                    "offset": 30,
                    "timestamp": seen_ms,
                },
            ),
            *(
                Measured("burrow_partition", {**group, "topic": "t", "partition": str(at), "owner": owner}, stuck)
                for at, owner in enumerate(owners)
            ),
        ]


@pytest.mark.parametrize(
    ("loads", "committed", "status", "partition"),
    [(1, 10, "OK", "OK"), (10, 12, "ERR", "OK"), (10, 8, "ERR", "REWIND")],
)
async def test_statuses(loads: int, committed: int, status: str, partition: str) -> None:
    """The worst partition decides on the group; one load allows no verdict. ``status`` leaves out what is well."""
    async with serving(loads, committed) as url:
        lag = (await ask(f"{url}/v3/kafka/main/consumer/g/lag")).document["status"]
        ill = (await ask(f"{url}/v3/kafka/main/consumer/g/status")).document["status"]
    assert (lag["status"], lag["partitions"][0]["status"]) == (status, partition)
    assert ill["partitions"] == [each for each in lag["partitions"] if each["status"] != "OK"]
    assert {**ill, "partitions": []} == {**lag, "partitions": []}


async def test_the_other_requests() -> None:
    """Lists and details have the fields of Burrow's answers, and each answer repeats the request."""
    async with serving(2) as url:
        documents = {}
        for path in ("", "/main", "/main/topic/t/consumers", "/main/topic/none/consumers", "/main/consumer/g"):
            got = await ask(f"{url}/v3/kafka{path}")
            assert (got.status, got.document["error"]) == (200, False)
            assert got.document["request"] == {"url": f"/v3/kafka{path}", "host": url.removeprefix("http://")}
            documents[path] = got.document
    assert documents[""]["clusters"] == ["main"]
    assert documents["/main"]["module"]["servers"] == ["z1:2181", "z2:2181"]
    assert documents["/main/topic/t/consumers"]["consumers"] == ["g"]
    assert documents["/main/topic/none/consumers"]["consumers"] == []
    sample = {"offset": 10, "timestamp": LATER_MS, "observedAt": LATER_MS, "lag": 2}
    assert documents["/main/consumer/g"]["topics"]["t"][0] == {
        "offsets": [sample, {**sample, "timestamp": LATER_MS + 5_000, "observedAt": LATER_MS + 5_000}],
        "owner": A,
        "client_id": "",
        "current-lag": 2,
    }


async def test_a_partition_is_at_its_place() -> None:
    """Clients take the place in a list for the partition, also if the group consumes only a later one."""
    cluster = ServedCluster("main", ClusterAddress(ZOOKEEPER, "z:2181", 10.0), 5.0, lambda *_: None)
    view = view_group("g", HEALTHY, LOG_ENDS)
    last = [each for each in view.partitions if each.topic_partition == TopicPartition("t", 2)]
    cluster.state = ClusterHistory().take(LoadedGroups((replace(view, partitions=tuple(last)),), 1, seen_ms=1), 0.1)
    server = RestServer(RestSettings(port=0))
    server.start(Burrow({"main": cluster}).routes())
    topics = (await ask(f"{server.url}/v3/kafka/main/consumer/g")).document["topics"]
    offsets = (await ask(f"{server.url}/v3/kafka/main/topic/t")).document["offsets"]
    await server.close()
    assert [each["owner"] for each in topics["t"]] == ["", "", B]
    assert offsets == [0, 0, 12]


@pytest.mark.parametrize(
    "path", ["/none", "/none/topic", "/none/consumer", "/main/topic/none", "/none/topic/t", "/main/consumer/none"]
)
async def test_what_does_not_exist(path: str) -> None:
    """The answer is an error with status 404."""
    async with serving(1) as url:
        got = await ask(f"{url}/v3/kafka{path}")
    assert (got.status, got.document["error"]) == (404, True)


async def test_the_status_of_a_group_that_does_not_exist() -> None:
    """As in Burrow, it is NOTFOUND with status 404, in a document like those of other groups."""
    async with serving(1) as url:
        for path in ("status", "lag"):
            got = await ask(f"{url}/v3/kafka/main/consumer/none/{path}")
            assert (got.status, got.document["error"], got.document["status"]["status"]) == (404, False, "NOTFOUND")
            assert (got.document["status"]["partitions"], got.document["status"]["totallag"]) == ([], 0)


async def test_the_health_check() -> None:
    """It is a word."""
    async with serving(1) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET /burrow/admin HTTP/1.0\r\n\r\n")
        assert (await reader.read()).endswith(b"\r\n\r\nGOOD")
        writer.close()
