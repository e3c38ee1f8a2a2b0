"""What a leader keeps of what it has read, and when it reads again."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from kiel_groups.config import GroupConfig
from kiel_groups.coordination.leader.plan_reader import PlanReader
from kiel_groups.coordination.session.zk_session import Node
from kiel_groups.group.znodes.contents import MemberInfo
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.partition_weights import encode_weights
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

LAYOUT = GroupLayout("g")


def member(topic: str) -> bytes:
    return MemberInfo(member_id="m", session_timeout_ms=1, subscription=(topic,)).encode()


class Znodes:
    """Stands for a session: one member; ``before_answer`` runs when its znode was read and the answer is on its way."""

    def __init__(self) -> None:
        self.data = member("old")
        self.config: bytes | None = None
        self.weights: bytes | None = None
        self.reads: list[str] = []
        self.before_answer: Callable[[Callable[[], None]], None] = lambda watcher: None

    async def get(self, path: str, watcher: Callable[[], None] | None = None) -> Node | None:
        self.reads.append(path)
        if path == LAYOUT.config and self.config is not None:
            return Node(self.config, 0, 1, 1, 0)
        if path == LAYOUT.weights and self.weights is not None:
            return Node(self.weights, 0, 1, 1, 0)
        if path != LAYOUT.member("m"):
            return None
        assert watcher is not None
        data = self.data
        self.before_answer(watcher)
        return Node(data, 0, 1, 1, 1)

    async def exists(self, path: str, watcher: Callable[[], None]) -> None:
        return None

    async def children(self, path: str, watcher: Callable[[], None] | None = None) -> list[str] | None:
        return ["m"] if path == LAYOUT.members else None

    async def get_many(self, paths: list[str], watchers: list[Callable[[], None]] | None = None) -> list[Node | None]:
        return [
            await self.get(path, watcher) for path, watcher in zip(paths, watchers or [None] * len(paths), strict=True)
        ]

    async def exists_many(self, paths: list[str], watchers: list[Callable[[], None]]) -> list[None]:
        return [None for _ in paths]

    def forget(self, watcher: Callable[[], None]) -> None:
        return None


async def test_a_member_is_read_once_while_its_watch_stands() -> None:
    """So are settings and topics; pointer and slices are read each time."""
    znodes = Znodes()
    told: list[str] = []
    reader = PlanReader(znodes, LAYOUT, GroupConfig(group="g"), Metrics(), told.append)  # type: ignore[arg-type]
    await reader.read()
    await reader.read()
    assert znodes.reads.count(LAYOUT.member("m")) == 1
    assert znodes.reads.count(LAYOUT.config) == 1
    assert znodes.reads.count(LAYOUT.group_state) == 2
    reader.forget()
    await reader.read()
    assert znodes.reads.count(LAYOUT.member("m")) == 2
    assert told == []


async def test_what_changes_while_it_is_read_is_read_again() -> None:
    """A watch may be told of before the answer that set it: what that answer says is not kept."""
    znodes = Znodes()
    told: list[str] = []

    def change(watcher: Callable[[], None]) -> None:
        znodes.data = member("new")
        znodes.before_answer = lambda _: None
        watcher()

    znodes.before_answer = change
    reader = PlanReader(znodes, LAYOUT, GroupConfig(group="g"), Metrics(), told.append)  # type: ignore[arg-type]
    assert (await reader.read()).members["m"].subscription == ("old",)
    assert told == ["member m changed"]
    assert (await reader.read()).members["m"].subscription == ("new",)


async def test_what_people_set_and_cannot_have_meant_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """A misspelt field, a drained id that is no member: by name, not at each plan; again where it was right between."""
    znodes = Znodes()
    reader = PlanReader(znodes, LAYOUT, GroupConfig(group="g"), Metrics(), lambda what: None)  # type: ignore[arg-type]
    misspelt = [
        "group g: /kiel-groups/g/config: drained: typo is no member",
        "group g: /kiel-groups/g/config: field 'debonce' means nothing here; did you mean 'debounce'?",
    ]
    for config, said in ((b'{"debonce":{},"drained":["m","typo"]}', misspelt), (b'{"drained":["m"]}', [])) * 2:
        znodes.config = config
        reader.forget()
        caplog.clear()
        await reader.read()
        await reader.read()
        assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == said


@pytest.mark.parametrize("newer", ["m1", "m2"])
async def test_of_two_members_in_one_place_the_newer_one_counts(newer: str) -> None:
    """By the order in which ZooKeeper took them, whatever they are called: the other one finds itself replaced."""

    class Two(Znodes):
        async def children(self, path: str, watcher: Callable[[], None] | None = None) -> list[str] | None:
            return ["m1", "m2"] if path == LAYOUT.members else None

        async def get(self, path: str, watcher: Callable[[], None] | None = None) -> Node | None:
            name = path.rpartition("/")[2]
            if name not in ("m1", "m2"):
                return None
            info = MemberInfo(member_id=name, session_timeout_ms=1, subscription=("t",), instance_id="i")
            return Node(info.encode(), 0, 2 if name == newer else 1, 1, 1)

    reader = PlanReader(Two(), LAYOUT, GroupConfig(group="g"), Metrics(), lambda what: None)  # type: ignore[arg-type]
    assert {slot: info.member_id for slot, info in (await reader.read()).members.items()} == {"i": newer}


async def test_weights_are_read_once_and_garbage_leaves_what_counted(caplog: pytest.LogCaptureFixture) -> None:
    """As bad settings do: a znode that is garbled for a while moves nothing. It is told of, and so is who has none."""
    znodes, metrics = Znodes(), Metrics()
    reader = PlanReader(znodes, LAYOUT, GroupConfig(group="g"), metrics, lambda what: None)  # type: ignore[arg-type]
    loads = {TopicPartition("t", 0): 3.5}
    garbage = f"group g: {LAYOUT.weights}: weights packed by zlib were expected, found b'{{}}'; "
    without, kept = "planning without weights", "keeping the previous weights"
    for data, found, told in (
        (b"{}", {}, [garbage + without]),
        (b"{}", {}, [garbage + without]),
        (encode_weights(loads), loads, []),
        (b"{}", loads, [garbage + kept]),
        (None, {}, []),
        (b"{}", {}, [garbage + without]),
    ):
        znodes.weights = data
        reader.forget()
        caplog.clear()
        first, second = await reader.read(), await reader.read()
        assert first.weights == found
        assert second.weights is first.weights
        assert set(first.members) == {"m"}
        assert [record.getMessage() for record in caplog.records] == told
    assert znodes.reads.count(LAYOUT.weights) == 6
    assert metrics.total("znodes_unreadable") == 4
