"""``kiel-groups serve``: a leader that is not a member."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
from tornado.httpclient import AsyncHTTPClient

from kiel_groups.allocators import round_robin
from kiel_groups.config import DebounceConfig, GroupConfig, ZooKeeperConfig
from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.contents import GroupState
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.members.zookeeper.allocator_process import AllocatorProcess
from kiel_groups.metrics import Metrics
from kiel_groups.ops.actions.groups import remove_empty_group
from tests.helpers.closed_sessions import close_session
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.commands import Running, kiel_groups_here
from tests.helpers.contexts import process_context
from tests.helpers.members import group_of
from tests.helpers.metrics_page import check_exposed
from tests.helpers.rest_requests import ask
from tests.helpers.servers import LASTING_MS
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

PARTITIONS = 8


def serving(cluster: Cluster, group: str, *options: str) -> Running:
    """Start a process that takes part in the group's election."""
    words = ["serve", "--zookeeper", cluster.zk_hosts, "--group", group, "--port", "0", *options]
    return Running(["-m", "kiel_groups", *words])


async def await_leading(process: Running) -> None:
    """Wait until the process logs that it is the leader."""
    await eventually(lambda: any(line.endswith(" leads") for line in process.errors), "it is the leader")


async def test_the_process_leads_members_that_join_and_leave(cluster: Cluster, unique: Unique) -> None:
    """
    While the process leads, no member does, and the process publishes the members' plans. After Ctrl-C a member leads
    at once.
    """
    topic, name = unique("topic"), unique("group")
    await cluster.create_topic(topic, PARTITIONS)
    layout = GroupLayout(name)
    with serving(cluster, name) as process, zookeeper(cluster) as client:
        await await_leading(process)
        async with group_of(cluster, name, [topic]) as group:
            values = await produce(cluster, topic, 80)
            await group.join()
            second = await group.join()
            await group.balanced(topic, PARTITIONS)
            await group.delivered(values)
            group_state = GroupState.parse(client.get(layout.group_state)[0], layout.group_state)
            assert group_state.leader not in client.get_children(layout.members)
            assert group_state.leader not in client.get_children(layout.ids)
            assert not any(member.consumer.is_leader for member in group.members)
            assert await asyncio.to_thread(process.end, signal.SIGINT) == 130
            # Its candidacy has ended with the process, not with its session.
            assert len(client.get_children(layout.election)) == 2
            await eventually(lambda: group.members[0].consumer.is_leader, "the first member leads")
            await second.stop()
            await group.balanced(topic, PARTITIONS)


async def test_services_take_over_from_each_other(cluster_39: Cluster, unique: Unique) -> None:
    """
    The next candidate leads when the session of a killed service has expired, and at once after SIGTERM. Each service
    shows over HTTP which candidate leads, and the new leader plans for members that join.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, PARTITIONS)

    def service(session_timeout_ms: int, *options: str) -> Running:
        given = ["--session-timeout-ms", str(session_timeout_ms), "--log-format", "json", *options]
        return serving(cluster_39, name, *given)

    with service(6_000, "--advertised-host", "proxy.example") as first:
        leader = await leader_in_log(first, name)
        assert (await url_in_log(first)).startswith("http://proxy.example:")
        with service(LASTING_MS) as second:
            stands_by = " is standing by, another process leads"
            await eventually(
                lambda: any(stands_by in each["message"] for each in documents(second)),
                "the second logs that it is standing by",
            )
            url = await url_in_log(second)
            async with group_of(cluster_39, name, [topic]) as group:
                await group.join()
                await group.balanced(topic, PARTITIONS)
                await leader_over_http(url, name, lambda found: found == leader)
                await asyncio.to_thread(first.end, signal.SIGKILL)
                leader = await leader_over_http(url, name, lambda found: found != leader)
                assert leader == await leader_in_log(second, name)
                joined = await group.join()
                await group.balanced(topic, PARTITIONS)

                def plans() -> list[Any]:
                    return [each for each in documents(second) if each.get("moved")]

                # The leader logs a plan after it has published it.
                (line,) = await eventually(plans, "the plan is logged")
                assert (line["group"], line["moved"], line["took_ms"] > 0) == (name, PARTITIONS // 2, True)
                # A plan may come between the member's registration and its subscription.
                assert re.search(rf"(join|subscription) of {re.escape(str(joined.consumer.member_id))}$", line["cause"])
                assert line["message"].startswith(f"group {name}: generation {line['generation']} is published after ")
                exposed = (await AsyncHTTPClient(force_instance=True).fetch(f"{url}/metrics")).body.decode()
                check_exposed(exposed)
                assert f'kiel_elections_won_total{{cluster="default",group="{name}"}} 1.0' in exposed
                assert await asyncio.to_thread(second.end, signal.SIGTERM) == 143
                # Its candidacy has ended with the process, not with its session. Members are the next candidates.
                with zookeeper(cluster_39) as client:
                    assert len(client.get_children(GroupLayout(name).election)) == 2
                await eventually(lambda: group.members[0].consumer.is_leader, "a member leads")


def documents(process: Running) -> list[Any]:
    """Return the log of a service that prints JSON documents."""
    return list(map(json.loads, process.errors))


async def url_in_log(process: Running) -> str:
    """Wait until a service logs its URL, and return it."""
    return await _in_log(process, r"serves default at (\S+)")


async def leader_in_log(process: Running, group: str) -> str:
    """Wait until a service logs that it leads a group, and return its candidate's id."""
    return await _in_log(process, rf"group {group}: (\S+) leads")


async def _in_log(process: Running, pattern: str) -> str:
    def found() -> str:
        matches = [re.fullmatch(pattern, each["message"]) for each in documents(process)]
        return next((match[1] for match in matches if match), "")

    return await eventually(found, f"the log has {pattern}")


async def leader_over_http(url: str, group: str, is_wanted: Callable[[str], bool]) -> str:
    """Wait until a service shows a leader of a group that is the wanted one, and return it."""

    async def leader() -> str:
        found = (await ask(f"{url}/v1/clusters/default/groups/{group}")).document.get("leader") or ""
        return found if found and is_wanted(found) else ""

    return await eventually(leader, "the wanted candidate leads")


async def test_a_member_leads_after_kill_9(cluster_39: Cluster, unique: Unique) -> None:
    """
    A member leads when the session of the killed process has expired. Until then, records are delivered; afterwards a
    member that joins gets partitions.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, PARTITIONS)
    with serving(cluster_39, name, "--session-timeout-ms", "4000") as process:
        await await_leading(process)
        async with group_of(cluster_39, name, [topic]) as group:
            first = await group.join()
            await group.balanced(topic, PARTITIONS)
            await asyncio.to_thread(process.end, signal.SIGKILL)
            await group.delivered(await produce(cluster_39, topic, 40))
            await eventually(lambda: first.consumer.is_leader, "the member leads")
            await group.join()
            await group.balanced(topic, PARTITIONS)
            await group.delivered(await produce(cluster_39, topic, 40, first=40))


async def test_plans_use_the_given_allocator_and_their_causes_are_logged(cluster_39: Cluster, unique: Unique) -> None:
    """
    Plans use the given allocator, and their causes are logged. The log also says if the group's ``config`` znode
    overrides the command's options.
    """
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, PARTITIONS)
    layout = GroupLayout(name)

    def has_logged(process: Running, *words: str) -> bool:
        return any(all(word in error for word in words) for error in process.errors)

    with zookeeper(cluster_39) as client:
        with serving(cluster_39, name, "--allocator", "sticky") as process:
            await await_leading(process)
            async with group_of(cluster_39, name, [topic]) as group:
                await group.join()
                await group.balanced(topic, PARTITIONS)
                second = await group.join()
                # The cause is its join or, if a plan came between its registration and its subscription, the latter.
                words = (f" ms, {PARTITIONS // 2} partitions move: ", f" of {second.consumer.member_id}")
                await eventually(lambda: has_logged(process, *words), "the plan and its cause are logged")
                assert GroupState.parse(client.get(layout.group_state)[0], layout.group_state).allocator == "sticky"
        settings = json.loads(client.get(layout.config)[0]) | {"allocator": "round_robin", "debounce": {"quiet_ms": 5}}
        client.set(layout.config, json.dumps(settings).encode())
        with serving(cluster_39, name, "--allocator", "sticky") as process:
            line = f"info: {layout.config} sets allocator round_robin, debounce.quiet_ms 5, which overrides the"
            await eventually(lambda: has_logged(process, line), "the override is logged")


async def test_a_leader_survives_the_end_of_its_session(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """After its session was lost, the leader opens another session, leads again, and plans for members that join."""
    topic, name = unique("topic"), unique("group")
    await cluster_39.create_topic(topic, PARTITIONS)
    candidate = AllocatorProcess(
        process_context(GroupConfig(group=name), ZooKeeperConfig.parse(cluster_39.zk_hosts)), round_robin, pytest.fail
    )
    await candidate.start()
    try:
        await eventually(lambda: candidate.leads, "it leads")
        before = candidate.member_id
        assert candidate.current is not None
        close_session(cluster_39.zk_hosts, candidate.current.session.client.client_id)
        await eventually(lambda: candidate.leads and candidate.member_id != before, "it leads on a new session")
        warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert any(before in line and line.endswith("; joining again") for line in warnings if before)
        assert f"group {name}: joined again, as {candidate.member_id}" in warnings
        async with group_of(cluster_39, name, [topic]) as group:
            await group.join()
            await group.balanced(topic, PARTITIONS)
            assert not group.members[0].consumer.is_leader
    finally:
        await candidate.close()
    with zookeeper(cluster_39) as client:
        assert client.get_children(GroupLayout(name).election) == []


async def test_a_leader_of_no_members_writes_no_znodes(cluster_39: Cluster, unique: Unique) -> None:
    """The leader writes no group settings, because the members choose them, and no plan without members."""
    name = unique("group")
    layout = GroupLayout(name)
    config = GroupConfig(group=name, debounce=DebounceConfig(initial_delay_ms=0))
    candidate = AllocatorProcess(
        process_context(config, ZooKeeperConfig.parse(cluster_39.zk_hosts)), round_robin, pytest.fail
    )
    await candidate.start()
    try:
        session = candidate.current
        assert session is not None
        await eventually(
            lambda: session.role.candidacy._leader_driver._planner._before is not None,
            "it has planned, and published what it needs",
        )
        with zookeeper(cluster_39) as client:
            assert [path for path in (layout.config, layout.group_state, layout.history) if client.exists(path)] == []
            assert client.get_children(layout.members) == client.get_children(layout.ids) == []
    finally:
        await candidate.close()


async def test_a_new_group_with_a_similar_name_is_reported(cluster_39: Cluster, unique: Unique) -> None:
    """The group does not exist yet, and the warning has the name of the existing similar group."""
    name = unique("group")
    with zookeeper(cluster_39) as client:
        client.create(f"/kiel-groups/{name}/members", makepath=True)
    with serving(cluster_39, name[:-1]) as process:
        await await_leading(process)
        assert f"there is no group {name[:-1]!r} yet" in process.errors[0]
        assert f"did you mean {name!r}?" in process.errors[0]
        assert await asyncio.to_thread(process.end, signal.SIGINT) == 130
    with zookeeper(cluster_39) as client:
        layout = GroupLayout(name[:-1])
        assert [path for path in (layout.root, layout.ids, layout.offsets) if client.exists(path)] == []
        assert client.exists(GroupLayout(name).members)


def test_only_empty_znodes_of_a_group_are_removed(cluster_39: Cluster, unique: Unique) -> None:
    """Offsets and their parent znodes remain. If the group has settings, candidates or members, nothing is removed."""
    name = unique("group")
    layout = GroupLayout(name)
    with zookeeper(cluster_39) as client:
        for folder in layout.parents:
            client.ensure_path(folder)
        for kept in (layout.config, f"{layout.election}/uuid-n_1", f"{layout.members}/id"):
            client.create(kept)
            assert not remove_empty_group(client, name)
            assert all(client.exists(folder) for folder in layout.parents)
            client.delete(kept)
        client.create(layout.topic_offsets("topic"))
        assert remove_empty_group(client, name)
        assert client.exists(layout.root) is None
        assert client.exists(layout.topic_offsets("topic"))
        assert not remove_empty_group(client, name)


async def test_a_foreign_member_that_joins_later_raises_an_alarm(
    cluster_39: Cluster, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader logs and counts a Java consumer and a member of kiel, until they have left."""
    name = unique("group")
    metrics = Metrics()
    candidate = AllocatorProcess(
        process_context(GroupConfig(group=name), ZooKeeperConfig.parse(cluster_39.zk_hosts), metrics=metrics),
        round_robin,
        pytest.fail,
    )

    def foreign() -> float:
        return {sample: value for sample, _, value in metrics.samples()}.get("foreign_members", 0.0)

    with zookeeper(cluster_39) as client, caplog.at_level(logging.INFO):
        await candidate.start()
        await eventually(lambda: candidate.leads, "it leads")
        for path in (f"/consumers/{name}/ids/{name}_host-1-abcdef01", f"/kiel/groups/{name}/members/worker:1"):
            client.create(path, b"{}", ephemeral=True, makepath=True)
            await eventually(lambda: foreign() == 1, "it is counted")
            errors = [record.message for record in caplog.records if record.levelname == "ERROR"]
            assert path.rpartition("/")[2] in errors[-1]
            client.delete(path)
            await eventually(lambda: foreign() == 0, "it has left")
        await candidate.close()
    assert metrics.counter("foreign_members_alarms") == 2


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--zookeeper", "{hosts}", "--group", "a b"], 2, "group: 'a b' is not a legal name"),
        (["--zookeeper", "127.0.0.1:1", "--group", "g"], 1, "no ZooKeeper answered at 127.0.0.1:1 within 5 s; is it"),
        (["--zookeeper", "{hosts}/nowhere", "--group", "g"], 2, "the chroot /nowhere does not exist"),
        (
            ["--zookeeper", "{hosts}", "--group", "g", "--debounce-ms", "1001"],
            2,
            "--debounce-ms: 1001 given; expected at most --debounce-bound-ms, which is 1000",
        ),
        (["--zookeeper", "{hosts}", "--group", "g", "--allocator", "sums"], 2, "there is no allocator 'sums'"),
        (
            ["--zookeeper", "{hosts}", "--webhook", "http://u:pass@h/"],
            2,
            "without a user and a password; the given one",
        ),
        (["--zookeeper", "{hosts}", "--webhook-secret-file", "/none"], 2, "/none cannot be read: No such file"),
    ],
)
def test_mistakes_give_one_line(cluster_39: Cluster, options: list[str], status: int, message: str) -> None:
    """The line says what is wrong, and may suggest a remedy."""
    outcome = kiel_groups_here("serve", *(option.format(hosts=cluster_39.zk_hosts) for option in options))
    assert (outcome.returncode, outcome.stdout) == (status, "")
    assert message in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1
