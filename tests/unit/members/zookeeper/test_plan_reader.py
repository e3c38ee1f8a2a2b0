"""Which znodes a leader reads for a plan, which it caches, and when it reads them again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from kiel_groups.group.planner import Inputs
from kiel_groups.group.znodes.contents import MemberInfo
from kiel_groups.group.znodes.group_settings import DynamicConfig, encode_weights
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.members.partition_handler import LogOffsets
from kiel_groups.members.zookeeper.planner import PlanReader
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.session import Node
from tests.helpers.contexts import session_context

pytestmark = pytest.mark.unit

LAYOUT = GroupLayout("g")


def member(topic: str) -> bytes:
    return MemberInfo(member_id="m", session_timeout_ms=1, subscription=(topic,)).encode()


class Znodes:
    """A session with one member. ``before_answer`` is called between the read of the member's znode and the answer."""

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


async def test_a_member_is_read_once_until_the_cache_is_dropped() -> None:
    """
    Members and the group settings are read once, until the cache is dropped. The group state is read for each plan.
    """
    znodes = Znodes()
    changes: list[str] = []
    reader = PlanReader(session_context(znodes), changes.append)
    await reader.read()
    await reader.read()
    assert znodes.reads.count(LAYOUT.member("m")) == 1
    assert znodes.reads.count(LAYOUT.config) == 1
    assert znodes.reads.count(LAYOUT.group_state) == 2
    reader.forget()
    await reader.read()
    assert znodes.reads.count(LAYOUT.member("m")) == 2
    assert changes == []


async def test_a_member_that_changes_during_a_read_is_read_again() -> None:
    """
    If a watch fires before the answer of the read that set it, the answer is not cached, and the member is read again.
    """
    znodes = Znodes()
    changes: list[str] = []

    def change(watcher: Callable[[], None]) -> None:
        znodes.data = member("new")
        znodes.before_answer = lambda _: None
        watcher()

    znodes.before_answer = change
    reader = PlanReader(session_context(znodes), changes.append)
    assert (await reader.read()).members["m"].subscription == ("old",)
    assert changes == ["member m changed"]
    assert (await reader.read()).members["m"].subscription == ("new",)


async def test_a_probable_mistake_in_the_settings_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """
    A probable mistake in the settings is logged once, not for each plan, and again if it was corrected in between.
    """
    znodes = Znodes()
    reader = PlanReader(session_context(znodes), lambda what: None)
    misspelt = [
        "group g: /kiel-groups/g/config: drained: typo is no member",
        "group g: /kiel-groups/g/config: field 'debonce' means nothing here; did you mean 'debounce'?",
    ]
    for config, logged in ((b'{"debonce":{},"drained":["m","typo"]}', misspelt), (b'{"drained":["m"]}', [])) * 2:
        znodes.config = config
        reader.forget()
        caplog.clear()
        await reader.read()
        await reader.read()
        assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == logged


@pytest.mark.parametrize("newer", ["m1", "m2"])
async def test_the_newer_of_two_members_in_one_slot_is_used(newer: str) -> None:
    """If two members have the same slot, the leader uses the member whose znode was created later."""

    class TwoMembers(Znodes):
        async def children(self, path: str, watcher: Callable[[], None] | None = None) -> list[str] | None:
            return ["m1", "m2"] if path == LAYOUT.members else None

        async def get(self, path: str, watcher: Callable[[], None] | None = None) -> Node | None:
            name = path.rpartition("/")[2]
            if name not in ("m1", "m2"):
                return None
            info = MemberInfo(member_id=name, session_timeout_ms=1, subscription=("t",), instance_id="i")
            return Node(info.encode(), 0, 2 if name == newer else 1, 1, 1)

    reader = PlanReader(session_context(TwoMembers()), lambda what: None)
    assert {slot: info.member_id for slot, info in (await reader.read()).members.items()} == {"i": newer}


async def test_unreadable_weights_are_reported_and_the_previous_ones_kept(caplog: pytest.LogCaptureFixture) -> None:
    """
    If the weights are unreadable, the previous weights are kept, and a line is logged. So a temporarily unreadable
    znode moves no partition.
    """
    znodes, metrics = Znodes(), Metrics()
    reader = PlanReader(session_context(znodes, metrics=metrics), lambda what: None)
    loads = {TopicPartition("t", 0): 3.5}
    garbage = f"group g: {LAYOUT.weights}: weights packed by zlib were expected, found b'{{}}'; "
    without, kept = "planning without weights", "keeping the previous weights"
    for data, found, logged in (
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
        assert [record.getMessage() for record in caplog.records] == logged
    assert znodes.reads.count(LAYOUT.weights) == 6
    assert metrics.total("znodes_unreadable") == 4


class Files:
    """A session with some znodes, which do not change."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    async def children(self, path: str, watcher: object = None) -> list[str]:
        return sorted({name[len(path) + 1 :].partition("/")[0] for name in self.files if name.startswith(f"{path}/")})

    async def get_many(self, paths: list[str]) -> list[Node | None]:
        return [Node(self.files[path], 0, 1, 1, 0) if path in self.files else None for path in paths]


def inputs(config: DynamicConfig) -> Inputs:
    info = MemberInfo(member_id="m", session_timeout_ms=1, subscription=("t",))
    return Inputs(members={"m": info}, topics={"t": (0, 1, 2)}, brokers=2, dynamic_config=config)


async def test_the_rack_of_a_partition_is_that_of_its_preferred_leader() -> None:
    """
    A broker's rack is read from its registration. The group's settings override it, and name it for brokers of 0.8.
    Without either, the rack is unknown.
    """
    broker = {"host": "h", "port": 9092, "version": 1, "jmx_port": -1}
    znodes = {
        "/brokers/ids/1": json.dumps(broker | {"rack": "east"}),
        "/brokers/ids/2": json.dumps(broker),
        "/brokers/topics/t": json.dumps({"version": 1, "partitions": {"0": [1, 2], "1": [2, 1], "2": [3]}}),
    }
    files: Any = Files({path: data.encode() for path, data in znodes.items()})
    reader = PlanReader(session_context(files), lambda _: None)
    t0, t1, _ = (TopicPartition("t", number) for number in range(3))
    assert await reader.racks(inputs(DynamicConfig())) == {t0: "east"}
    settings = DynamicConfig(broker_racks=((1, "north"), (2, "west")))
    assert await reader.racks(inputs(settings)) == {t0: "north", t1: "west"}


async def test_a_lag_is_the_distance_from_the_stored_offset_to_the_end() -> None:
    """Partitions without a stored offset, or whose leader does not answer, are left out. No lag is negative."""

    class Logs:
        async def log_offsets(self, partitions: list[TopicPartition], policy: str) -> LogOffsets:
            assert policy == "latest"
            return LogOffsets({partitions[0]: 100, partitions[1]: 5}, {})

    files: Any = Files({LAYOUT.offset(TopicPartition("t", number)): b"40" for number in (0, 1, 2)})
    logs: Any = Logs()
    reader = PlanReader(session_context(files), lambda _: None)
    found = await reader.lags(inputs(DynamicConfig()), logs)
    assert found == {TopicPartition("t", 0): 60, TopicPartition("t", 1): 0}
