"""Generic members on real servers: the same programs, whether ZooKeeper or brokers coordinate their group."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.embedded.releases import kafka_release
from kiel_groups.errors import HookError, KielGroupsError
from kiel_groups.members.brokers.hooks import JoinedGroup
from kiel_groups.wire.group_requests import GroupProtocol
from tests.helpers.cluster_data import zookeeper
from tests.helpers.commands import Running
from tests.helpers.generic_program import NUMBERS, NumberProgram
from tests.helpers.members import LASTING
from tests.helpers.servers import ZOOKEEPERS, played_kafkas
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


@pytest.fixture(
    params=[("zookeeper", version) for version in ZOOKEEPERS] + [("brokers", version) for version in played_kafkas()],
    ids=lambda param: f"{param[0]}{param[1]}",
)
def settings(request: pytest.FixtureRequest, shared_clusters: Callable[..., Cluster]) -> Mapping[str, Any]:
    """Return the arguments of members on a shared cluster: once for each kind of coordination, and each release."""
    coordination, version = request.param
    if coordination == "zookeeper":
        return {"zk_hosts": shared_clusters(version).zk_hosts, **LASTING}
    uses_zookeeper = kafka_release(version).uses_zookeeper
    cluster = shared_clusters("3.9.5" if uses_zookeeper else None, version)
    return {
        "brokers": list(cluster.brokers),
        "coordination": "brokers",
        "session_timeout_ms": 6_000,
        "heartbeat_interval_ms": 200,
        "retry_backoff_ms": 20,
    }


class Group:
    """The programs of one group: those of this process, which ``join`` starts, and one in a process of its own."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self.name = name
        self.settings = settings
        self.programs: list[NumberProgram] = []
        self.process: Running | None = None

    async def join(self) -> NumberProgram:
        program = NumberProgram(self.name, self.settings)
        self.programs.append(program)
        await program.member.start()
        return program

    async def start_process(self) -> Running:
        # A test waits for the end of this session only.
        settings = {**self.settings, "session_timeout_ms": min(self.settings["session_timeout_ms"], 6_000)}
        arguments = ["-m", "tests.helpers.generic_program", self.name, json.dumps(settings)]
        self.process = Running(arguments)
        await asyncio.to_thread(self.process.wait_for_lines, 1)
        return self.process

    async def settled(self, members: int) -> int:
        """Wait until this many members share all numbers in one generation, and return it."""

        def is_settled() -> bool:
            held = [(program.member.generation, program.held) for program in self.programs]
            if self.process is not None and self.process.process.poll() is None:
                line = json.loads(self.process.lines[-1])
                held.append((line["generation"], frozenset(line["numbers"])))
            numbers = [number for _, found in held for number in found or ()]
            return len(held) == members and len({each for each, _ in held}) == 1 and sorted(numbers) == sorted(NUMBERS)

        await eventually(is_settled, f"{members} members share all numbers")
        return self.programs[0].member.generation

    async def close(self) -> None:
        for program in self.programs:
            await program.member.close()
        if self.process is not None:
            self.process.process.kill()
            self.process.wait()


@asynccontextmanager
async def group_of(name: str, settings: Mapping[str, Any]) -> AsyncIterator[Group]:
    group = Group(name, settings)
    try:
        yield group
    finally:
        await group.close()


async def join(group: Group) -> None:
    """A second member joins: both prepare, and share the numbers in the next generation."""
    first = await group.join()
    before = await group.settled(1)
    second = await group.join()
    assert await group.settled(2) > before
    assert first.calls == ["complete", "prepare", "complete"]
    assert second.calls == ["complete"]
    assert [program.member.leads for program in group.programs].count(True) == 1
    assert all(program.member.is_trusted for program in group.programs)
    assert await first.member.ensure_coordinator_known(timeout_ms=0)
    assert not first.member.coordinator_unknown()
    assert isinstance(first.member.coordinator_id, int)
    found = first.member.kafka_metrics()["consumer-coordinator-metrics"]
    assert found["join-rate"]
    assert found["sync-time-max"] is not None
    await eventually(lambda: first.member.kafka_metrics()["consumer-coordinator-metrics"]["heartbeat-rate"], "beats")


async def leave(group: Group) -> None:
    """A member that closes gives its numbers back first, and the other has them without waiting for a session."""
    for _ in range(2):
        await group.join()
    before = await group.settled(2)
    left = group.programs.pop(0)
    await left.member.close()
    assert left.calls[-1] == "prepare"
    assert not left.member.is_trusted
    assert await group.settled(1) > before


async def request_rejoin(group: Group) -> None:
    """A member that rejoins offers fresh metadata, and all members get a new generation."""
    for _ in range(2):
        await group.join()
    before = await group.settled(2)
    for program in list(group.programs):
        joins = program.joins
        program.member.request_rejoin()
        assert program.member.need_rejoin
        await program.member.ensure_active()
        after = await group.settled(2)
        assert after > before
        assert program.joins > joins
        before = after


async def kill_leader(group: Group) -> None:
    """After kill -9 of the leader's process, another member leads as soon as its session is over."""
    process = await group.start_process()
    program = await group.join()
    await group.settled(2)
    assert not program.member.leads
    process.end(signal.SIGKILL)
    await group.settled(1)
    assert program.member.leads
    assert "lost" not in program.calls


async def kill_member(group: Group) -> None:
    """After kill -9 of another member's process, the leader has all numbers as soon as its session is over."""
    program = await group.join()
    process = await group.start_process()
    await group.settled(2)
    assert program.member.leads
    process.end(signal.SIGKILL)
    await group.settled(1)
    assert "lost" not in program.calls


async def refuse(group: Group) -> None:
    """A member that has no protocol in common with the others stops with an error, and the group remains."""
    program = await group.join()
    await group.settled(1)
    stranger = NumberProgram(group.name, group.settings, protocols=("q",))
    with pytest.raises(KielGroupsError):
        await stranger.member.start()
    await stranger.member.close()
    assert stranger.calls == []
    await program.member.ensure_active()
    await group.settled(1)


@pytest.mark.parametrize("story", [join, leave, request_rejoin, kill_leader, kill_member, refuse])
async def test_programs_share_their_work(
    story: Callable[[Group], Awaitable[None]], settings: Mapping[str, Any], unique: Unique
) -> None:
    """The docstring of each function says what happens; ZooKeeper and brokers of each release do the same."""
    async with group_of(unique("group"), settings) as group:
        await story(group)


async def test_operators_see_the_rounds(cluster_39: Cluster, unique: Unique) -> None:
    """The znodes of a group are JSON, and members that have left leave only the settings and the state."""
    name = unique("group")
    async with group_of(name, {"zk_hosts": cluster_39.zk_hosts}) as group:
        program = await group.join()
        with zookeeper(cluster_39) as client:
            root = f"/kiel-groups/{name}"
            member_id = program.member.member_id
            assert json.loads(client.get(f"{root}/config")[0]) == {"version": 2, "protocol_type": "numbers"}
            member = json.loads(client.get(f"{root}/members/{member_id}")[0])
            offered = base64.b64encode(b"%d" % program.joins).decode()
            assert (member["joined"], member["protocols"]) == (1, [["p", offered]])

            def is_done() -> dict[str, Any] | None:
                state: dict[str, Any] = json.loads(client.get(f"{root}/allocation")[0])
                return state if state["state"] == "done" else None

            state = await eventually(is_done, "the round is done")
            assert state is not None
            assert (state["state"], state["generation"], state["members"]) == ("done", 1, [member_id])
            assert json.loads(client.get(f"{root}/allocation/{member_id}")[0])["for"] == member_id
            await program.member.close()
            assert client.get_children(f"{root}/members") == client.get_children(f"{root}/election") == []


LARGE = bytes(2_000_000)


class FaultyProgram(NumberProgram):
    """A program whose hooks return what a test says, unless that is None."""

    offered: Any = None
    assigned: Any = None

    async def protocols(self) -> Any:
        return await super().protocols() if self.offered is None else self.offered

    async def perform_assignment(self, joined: JoinedGroup) -> Any:
        self.calls.append("perform_assignment")
        found = await super().perform_assignment(joined)
        return found if self.assigned is None else dict.fromkeys(joined.members, self.assigned)


def place(settings: Mapping[str, Any]) -> str:
    """Return where the data of a group are stored, as errors say it."""
    return "in its coordinator's message" if "brokers" in settings else "in ZooKeeper"


@pytest.mark.parametrize(
    ("offered", "error"),
    [
        ([], "returned no protocol; expected at least one"),
        ([GroupProtocol("p", "text")], "returned 'text' (str) as the metadata of p; expected bytes"),  # type: ignore[arg-type]
        ([GroupProtocol("p\udcff", b"")], "returned a protocol named 'p\\udcff' (str); expected a text that UTF-8 can"),
        ([GroupProtocol("p" * 40_000, b"")], "expected a text of at most 32,767 bytes in UTF-8, not of 40,000"),
        ([GroupProtocol("p", LARGE)], "what this member offers (p) takes {size} KiB {place}; expected at most 956"),
    ],
    ids=["none", "text", "surrogate", "long", "large"],
)
async def test_an_illegal_offer_fails_the_start(
    offered: Any, error: str, settings: Mapping[str, Any], unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """The start raises at once, nothing is sent, and the log has one line about it."""
    name = unique("group")
    program = FaultyProgram(name, settings)
    program.offered = offered
    with pytest.raises(HookError, match=rf"group {name}: protocols\(\) of FaultyProgram") as found:
        await program.member.start()
    await program.member.close()
    assert error.format(size=1953 if "brokers" in settings else 2604, place=place(settings)) in str(found.value)
    lines = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert lines == [f"group {name}: this member stops: {found.value}"]
    assert program.calls == []


@pytest.mark.parametrize(
    ("assigned", "error"),
    [("text", "returned 'text' (str) as the assignment of"), (LARGE, "KiB")],
    ids=["text", "large"],
)
async def test_an_illegal_assignment_stops_the_leader_only(
    assigned: Any, error: str, settings: Mapping[str, Any], unique: Unique
) -> None:
    """The leader stops after one try, and leaves; a healthy member leads the next generation, and gets its work."""
    name = unique("group")
    faulty = FaultyProgram(name, settings)
    faulty.assigned = assigned
    async with group_of(name, settings) as group:
        with pytest.raises(HookError, match=r"perform_assignment\(\) of FaultyProgram") as found:
            await faulty.member.start()
        assert error in str(found.value)
        assert assigned == "text" or place(settings) in str(found.value)
        assert faulty.calls == ["perform_assignment"]
        healthy = await group.join()
        await group.settled(1)
        assert healthy.member.leads
        await faulty.member.close()
