"""
Attacks on a service that leads a group of a real cluster: it refuses or escapes them, nothing changes, and it leads on.

``tests/unit/rest`` and ``tests/unit/workers/rest`` have the rules of access and the limits in every detail.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from kiel_groups.allocators import round_robin
from kiel_groups.config import GroupConfig, ZooKeeperConfig
from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.contents import GroupState, MemberInfo
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.members.zookeeper.allocator_process import AllocatorProcess
from kiel_groups.ops.actions.cluster_address import ZOOKEEPER, ClusterAddress
from kiel_groups.rest import server as rest_server
from kiel_groups.rest.settings import RestSettings
from kiel_groups.service import events
from kiel_groups.service.service import Service
from tests.helpers.cluster_data import zookeeper
from tests.helpers.contexts import process_context
from tests.helpers.members import group_of
from tests.helpers.rest_requests import address_of, ask, send_bytes
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

TOKEN = "t0ken-of-the-service"
BEARER = f"Authorization: Bearer {TOKEN}"
JSON = "Content-Type: application/json"

#: Each change of a group, with a body that is right.
CHANGES: list[tuple[str, str, Any]] = [
    ("POST", "/rebalance", {"reason": "attack"}),
    ("POST", "/drain", {"host": "h"}),
    ("POST", "/undrain", {"host": "h"}),
    ("PATCH", "/config", {"settings": {"allocator": "sticky"}}),
    ("POST", "/offsets/reset", {"topics": None, "to": "earliest"}),
    ("POST", "/offsets/delete", {"topics": None}),
    ("POST", "/offsets/copy", {"to": "copy-of-an-attacker"}),
    ("POST", "/offsets/import", {"file": {"version": 1, "group": "g", "offsets": {"t:0": 1}}, "topics": None}),
    ("POST", "/connectors/c/pause", {}),
    ("POST", "/connectors/c/resume", {}),
    ("POST", "/connectors/c/restart", {"only_failed": True}),
    ("PUT", "/connectors/c", {"config": {"connector.class": "FileStreamSource", "file": "/etc/passwd", "topic": "t"}}),
    ("DELETE", "/connectors/c", None),
    ("DELETE", "", None),
]


def request(method: str, path: str, *headers: str, body: bytes = b"", host: str = "127.0.0.1") -> bytes:
    """Return the bytes of a request after which the server closes the connection."""
    length = [f"Content-Length: {len(body)}"] if body else []
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *length, *headers, "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def tree(client: KazooClient) -> dict[str, tuple[bytes, int, int]]:
    """Return the data, the version and the creation of each znode that clients of Kafka write."""
    roots = ("/consumers", "/kiel-groups", "/kiel", "/brokers/topics", "/config", "/admin")
    found, folders = {}, [path for path in roots if client.exists(path)]
    while folders:
        reads = [(path, client.get_async(path), client.get_children_async(path)) for path in folders]
        folders = []
        for path, read, listed in reads:
            with suppress(NoAuthError):  # Another test gave the znode an ACL.
                data, stat = read.get()
                found[path] = (data, stat.version, stat.czxid)
                folders += [f"{path}/{name}" for name in listed.get()]
    return found


class Attacked:
    """A service, and the group with one member that it leads."""

    def __init__(self, service: Service, name: str, topic: str, client: KazooClient) -> None:
        self.service = service
        self.url = service.url
        self.group = name
        self.topic = topic
        self.client = client

    async def send(self, data: bytes) -> int:
        """Send bytes, and return the status of the answer, or 0 if the server has closed the connection without one."""
        try:
            return (await send_bytes(self.url, data))[0]
        except ConnectionError:
            return 0

    async def health(self) -> int:
        """Return the status of a health check, which must be answered soon."""
        async with asyncio.timeout(5):
            return (await ask(f"{self.url}/healthz")).status


@asynccontextmanager
async def attacked(
    cluster: Cluster, unique: Unique, plant: Callable[[KazooClient, str], object] = lambda *_: None
) -> AsyncIterator[Attacked]:
    """
    Run a service that leads a group, on the same event loop as ``serve`` does. The block is the attack.

    After the attack, ZooKeeper has the same znodes as before, and the same session leads the same generation. ``plant``
    creates further znodes before the attack.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, 4)
    process = process_context(GroupConfig(group=name), ZooKeeperConfig.parse(cluster.zk_hosts))
    leader = AllocatorProcess(process, round_robin, pytest.fail)
    address = ClusterAddress(ZOOKEEPER, cluster.zk_hosts, 10.0)
    service = Service(RestSettings(port=0, token=TOKEN, open_reads=True), {"main": address}, interval_s=1)
    await leader.start()
    service.start()
    try:
        await eventually(lambda: leader.leads, "it leads")
        async with group_of(cluster, name, [topic]) as group:
            await group.join()
            await group.balanced(topic, 4)
            with zookeeper(cluster) as client:
                plant(client, name)

                async def is_settled() -> bool:
                    found = (await ask(f"{service.url}/v1/clusters/main/groups/{name}")).document
                    return bool(found.get("state") == "settled")

                await eventually(is_settled, "the group is shown")
                state = GroupState.parse(client.get(GroupLayout(name).group_state)[0], name)
                before, rebalances = await asyncio.to_thread(tree, client), group.members[0].rebalances
                yield Attacked(service, name, topic, client)
                assert (await ask(f"{service.url}/healthz")).status == 200
                assert await asyncio.to_thread(tree, client) == before
            assert (leader.leads, leader.member_id) == (True, state.leader)
            assert group.members[0].rebalances == rebalances
    finally:
        await service.close()
        await leader.close()


async def test_changes_of_strangers_are_refused(fresh_cluster: Cluster, unique: Unique) -> None:
    """No change without the token, none from a page of another site, and none for another host, with the token, too."""
    async with attacked(fresh_cluster, unique) as service:
        description = (await ask(f"{service.url}/v1/openapi.json")).document["paths"]
        prefix = "/v1/clusters/{cluster}/groups/{group}"
        described = {(verb.upper(), path) for path, verbs in description.items() for verb in verbs if verb != "get"}
        assert described == {
            (method, prefix + re.sub("/c(?=/|$)", "/{connector}", path)) for method, path, _ in CHANGES
        }
        for method, path, document in CHANGES:
            place = f"/v1/clusters/main/groups/{service.group}{path}"
            body = b"" if document is None else json.dumps(document).encode()

            async def status(*headers: str, host: str = "127.0.0.1", query: str = "", kind: str = JSON) -> int:
                types = [kind] if body else []  # noqa: B023
                return await service.send(request(method, place + query, *types, *headers, body=body, host=host))  # noqa: B023

            assert await status() == 401
            assert await status(query=f"?token={TOKEN}&access_token={TOKEN}") == 401
            for wrong in ("", "x", TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), f"{TOKEN},{TOKEN}"):
                assert await status(f"Authorization: Bearer {wrong}") == 401
            assert await status("Authorization: Bearer wrong", BEARER) == 401
            for site in ("http://attacker.example", "null", "file://", "http://127.0.0.1.attacker.example"):
                assert await status(BEARER, f"Origin: {site}") == 403
                assert await status(f"Origin: {site}") == 401
            for host in ("attacker.example", "127.0.0.1.attacker.example:80", "localhost.attacker.example"):
                assert await status(BEARER, host=host) == 403
                assert await status(BEARER, f"Origin: http://{host}", host=host) == 403
            if body:
                for kind in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", ""):
                    assert await status(BEARER, kind=f"Content-Type: {kind}") == 415
        # Methods that mean another one elsewhere mean nothing here.
        place = f"/v1/clusters/main/groups/{service.group}?_method=DELETE"
        override = "X-HTTP-Method-Override: DELETE"
        assert await service.send(request("POST", place, BEARER, override, JSON, body=b"{}")) == 405
        assert await service.send(request("GET", place, BEARER, override)) == 200
        page = f"/clusters/main/groups/{service.group}"
        for path in ("/", page, "/v1/clusters", "/v1/events", "/metrics", "/v3/kafka"):
            assert await service.send(request("GET", path, host="attacker.example")) == 403
            assert await service.send(request("GET", path, "Origin: http://attacker.example")) == 403
            # The refusal does not wait for the body, which the server would have to keep.
            assert (
                await service.send(request("GET", path, "Authorization: Bearer wrong", "Content-Length: 9999999"))
                == 401
            )


@pytest.mark.slow
async def test_no_path_and_no_body_leads_to_another_znode(fresh_cluster: Cluster, unique: Unique) -> None:
    """Names that would leave the roots, illegal and long names, and bodies and headers that are too large."""
    async with attacked(fresh_cluster, unique) as service:
        name, root = service.group, "/v1/clusters/main/groups"
        names = (
            *(
                "..",
                ".",
                "%2e%2e",
                "%2e",
                "..%2f..%2fbrokers%2ftopics",
                "%2fbrokers",
                "x%2f..%2fy",
                "%2f",
                "%5c..%5c..",
            ),
            *("%00", f"{name}%00", "%c0%ae%c0%ae", "%ff", "%u002e", "%252e%252e", "%0d%0aX-Y:%20z", "%20", "%e2%80%ae"),
            *(f"{name}%2foffsets", f"{name}%2f..%2f{name}", f"%20{name}", "n" * 5_000),
        )
        for name in names:
            for method, path, document in CHANGES:
                body = b"" if document is None else json.dumps(document).encode()
                headers = [BEARER, *([JSON] if body else [])]
                sent = request(method, f"{root}/{name}{path}", *headers, body=body)
                got, answer = await send_bytes(service.url, sent)
                assert got in (400, 404, 405), (method, name, path, answer)
                assert b"\r\nX-Y:" not in answer
            for path in (f"{root}/{name}", f"/v1/clusters/{name}/groups", f"/clusters/main/groups/{name}"):
                got, answer = await send_bytes(service.url, request("GET", path))
                assert got in (400, 404), (path, answer)
                assert len(answer) < 40_000
            for path in (f"/static/{name}", f"/static/../templates/{name}", f"/v3/kafka/{name}/consumer/x"):
                assert await service.send(request("GET", path)) in (400, 404)
        place = f"{root}/{service.group}"
        file = {"version": 1, "group": service.group, "offsets": {}}
        bodies: list[tuple[str, str, Any]] = [
            ("POST", "/drain", {"member": "../../brokers"}),
            ("POST", "/undrain", {"member": f"x\0{'y' * 5_000}"}),
            ("POST", "/rebalance", {"reason": "\u202e" + "r" * 10_000}),
            ("POST", "/offsets/reset", {"topics": ["../../../brokers"], "to": "earliest"}),
            ("POST", "/offsets/delete", {"topics": ["..", f"{service.topic}/0"]}),
            ("POST", "/offsets/copy", {"to": "../brokers"}),
            ("POST", "/offsets/copy", {"to": "c" * 5_000}),
            ("POST", "/offsets/import", {"file": {**file, "offsets": {"../../../x:0": 1}}, "topics": None}),
            ("POST", "/offsets/import", {"file": {**file, "znodes": {"config/../../x": ""}}, "topics": None}),
            ("POST", "/offsets/import", {"file": {**file, "znodes": {"../x": ""}}, "topics": None}),
            ("PATCH", "/config", {"settings": {"../x": "1"}}),
            ("PATCH", "/config", {"settings": {"allocator": "os:system"}}),
        ]
        for method, path, document in bodies:
            sent = request(method, place + path, BEARER, JSON, body=json.dumps(document).encode())
            got, answer = await send_bytes(service.url, sent)
            assert got == 400, (path, document, answer)
            assert len(answer) < 10_000
        large = b'{"reason": "' + b"r" * (2 << 20) + b'"}'
        assert await service.send(request("POST", f"{place}/rebalance", BEARER, JSON, body=large)) == 413
        # Pages and streams take no bodies; what comes is dropped.
        assert await service.send(request("GET", "/", body=large)) == 200
        for path in ("/", f"/clusters/main/groups/{service.group}", "/static/console.css"):
            got, answer = await send_bytes(service.url, request("HEAD", path))
            assert (got, answer[-4:]) == (200, b"\r\n\r\n")
        assert await service.send(request("POST", "/", BEARER, body=large)) == 405
        assert await service.send(request("POST", "/static/console.js", body=large)) == 405
        for headers in (["X: " + "y" * 100_000], [f"X-{at}: y" for at in range(20_000)], [f"Cookie: {'c' * 70_000}"]):
            assert await service.send(request("GET", "/", *headers)) in (0, 400, 431)
        assert await service.send(request("GET", "/" + "p" * 60_000)) == 404


@asynccontextmanager
async def connections(url: str, count: int, data: bytes = b"") -> AsyncIterator[list[socket.socket]]:
    """Open connections of small buffers, and send these bytes on each of them. Nothing is read."""
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in opened:
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await loop.sock_connect(each, address_of(url))
            await loop.sock_sendall(each, data)
        yield opened


async def end_of(connection: socket.socket) -> None:
    """Wait until the server has closed a connection, and drop what it has sent."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(10):
        while True:
            try:
                if not await loop.sock_recv(connection, 1 << 16):
                    return
            except ConnectionError:
                return


@pytest.mark.slow
async def test_slow_clients_and_a_thousand_idle_ones(
    fresh_cluster: Cluster, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers and bodies that come byte by byte, and answers that are not read, end; idle connections make room."""
    monkeypatch.setattr(rest_server, "_IDLE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(rest_server, "_BODY_TIMEOUT_S", 0.5)
    monkeypatch.setattr(rest_server, "SEND_TIMEOUT_S", 0.5)
    monkeypatch.setattr(rest_server, "_MOST_CONNECTIONS", 300)
    monkeypatch.setattr(events, "_SEND_S", 0.5)
    async with attacked(fresh_cluster, unique) as service:
        place = f"/v1/clusters/main/groups/{service.group}/rebalance"
        body = request("POST", place, BEARER, JSON, body=b"{}" + b" " * 1_000)[:-1_000]
        page = request("GET", "/static/uplot-1.6.32.min.js").replace(b"close", b"keep-alive")
        async with (
            connections(service.url, 1, b"GET / HTTP/1.1\r\nX: ") as headers,
            connections(service.url, 1, body) as bodies,
            connections(service.url, 1, page * 500) as readers,
            connections(service.url, 1, request("GET", "/v1/events")) as streams,
        ):

            async def drip() -> None:
                while True:
                    for each in (*headers, *bodies):
                        try:
                            each.send(b" ")
                        except OSError:
                            return
                    await asyncio.sleep(0.05)

            dripping = asyncio.ensure_future(drip())
            await asyncio.sleep(0)
            names = ["n" * 1_000] * 2_000
            await eventually(lambda: service.service._events._streams, "the stream is open")
            for _ in range(10):
                service.service._events.publish(service.service._clusters["main"], names)
            assert await service.health() == 200
            # The test reads only then: a client that reads its stream in time keeps it.
            await eventually(lambda: not service.service._events._streams, "the stream is closed")
            for each in (*headers, *bodies, *readers, *streams):
                await end_of(each)
            dripping.cancel()
        async with connections(service.url, 400, request("GET", "/v1/events")):
            assert await service.health() == 200
        monkeypatch.setattr(rest_server, "_IDLE_TIMEOUT_S", 60.0)
        async with connections(service.url, 1_000):
            for _ in range(5):
                assert await service.health() == 200


#: Texts that a browser could take for something else, and one that is long.
HOSTILE = (
    "<script>alert(1)<",
    "\"'><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}{% raw x %}",
    "javascript:alert(1)",
    "\u202egnp.exe\u2066",
    "l" * 250,
)


def plant_hostile(client: KazooClient, group: str) -> None:
    """Give hostile names to a member of the group, its host and topics, to groups of other clients, and to owners."""
    layout = GroupLayout(group)
    for text in HOSTILE:
        name = text.replace("/", "∕")
        info = MemberInfo(
            member_id=name,
            session_timeout_ms=60_000,
            subscription=(name,),
            host=text * 12,
            pid=1,
            started_at_ms=1,
        )
        client.create(f"{layout.root}/history/{name}", text.encode(), makepath=True)
        client.create(f"/consumers/{group}/offsets/{name}/0", b"1", makepath=True)
        client.create(f"/consumers/{group}/owners/{name}/0", f"{name}-0".encode(), makepath=True)
        client.create(f"/consumers/{name}/offsets/{name}/0", text.encode(), makepath=True)
        client.create(f"/consumers/{name}/ids/{name}", json.dumps({"subscription": {text: 1}}).encode(), makepath=True)
        client.create(f"/kiel-groups/{name}/members/{name}", info.encode(), makepath=True)
        client.create(f"/kiel-groups/{name}/allocation", text.encode(), makepath=True)


class Tags(HTMLParser):
    """Collects the elements of a page, and the names and values of their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: set[str] = set()
        self.sources: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name == "src":
                self.sources.add(value or "")
            if name == "href":
                self.links.add(value or "")


@pytest.mark.slow
async def test_hostile_names_are_texts(fresh_cluster: Cluster, unique: Unique) -> None:
    """The pages, documents and metrics show them as they are; invisible signs are escaped; no element is theirs."""
    hostile = [text.replace("/", "∕") for text in HOSTILE]
    try:
        async with attacked(fresh_cluster, unique, plant_hostile) as service:

            async def are_shown() -> bool:
                shown = (await ask(f"{service.url}/v1/clusters/main/groups")).document["groups"]
                return {each["group"] for each in shown} >= {service.group, *hostile}

            await eventually(are_shown, "all groups are shown")
            for group in (None, service.group, *hostile):
                path = "/" if group is None else f"/clusters/main/groups/{quote(group, safe='')}"
                got, answer = await send_bytes(service.url, request("GET", path))
                text = answer.partition(b"\r\n\r\n")[2].decode()
                tags = Tags()
                tags.feed(text)
                assert (got, "default-src 'none'" in answer.decode()) == (200, True)
                assert not {"img", "iframe", "style"} & tags.tags
                assert not [name for name in tags.attributes if name.startswith("on")]
                assert {source.split("/")[1] for source in tags.sources} == {"static"}
                assert all(link.startswith(("/", "#")) for link in tags.links)
                assert not re.search("[\u202a-\u202e\u2066-\u2069]", text)
                assert len(text) < 300_000
            for path in ("/metrics", "/v3/kafka/main/consumer", f"/v1/clusters/main/groups/{service.group}"):
                got, answer = await send_bytes(service.url, request("GET", path))
                assert (got, b"\r\nX-Content-Type-Options: nosniff\r\n" in answer) == (200, True), path
            for group in hostile:
                place = f"/v1/clusters/main/groups/{quote(group, safe='')}"
                for method, path, document in CHANGES:
                    if path in ("/offsets/copy", ""):
                        continue
                    body = json.dumps({**(document or {}), "dry_run": True}).encode()
                    got, answer = await send_bytes(service.url, request(method, place + path, BEARER, JSON, body=body))
                    assert got in (200, 400, 404, 409), (path, answer)
    finally:
        with zookeeper(fresh_cluster) as client:
            for name in hostile:
                for root in ("/consumers", "/kiel-groups"):
                    client.delete(f"{root}/{name}", recursive=True)
