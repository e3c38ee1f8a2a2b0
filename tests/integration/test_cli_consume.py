"""``kiel-groups consume`` as a process: its output, its commits, its end."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kiel_groups import Producer
from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.contents import MemberAssignment
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition
from tests.helpers.cluster_data import owners, produce, stored_offsets, zookeeper
from tests.helpers.commands import REPOSITORY, Running, kiel_groups_here
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


@pytest.fixture
def words(cluster_39: Cluster, unique: Unique) -> list[str]:
    """Return the command with a topic and a group of this test: ``consume TOPIC --group=GROUP …``."""
    topic, group = unique("topic"), unique("group")
    servers = [f"--brokers={cluster_39.brokers[0]}", f"--zookeeper={cluster_39.zk_hosts}"]
    return ["consume", topic, f"--group={group}", *servers]


def names(words: list[str]) -> tuple[str, str]:
    """Return the topic and the group of a command."""
    return words[1], words[2].partition("=")[2]


def started(words: list[str], output: int | socket.socket) -> subprocess.Popen[bytes]:
    """Start the command with ``output`` as its standard output."""
    return subprocess.Popen(
        [sys.executable, "-m", "kiel_groups", *words], stdout=output, stderr=subprocess.PIPE, cwd=REPOSITORY
    )


async def test_each_run_resumes_where_the_last_one_ended(cluster_39: Cluster, words: list[str]) -> None:
    """
    With --max-messages, a run prints this number of records and commits them. With --timeout, a run ends when no
    further record arrives in this time. With --pattern, the topics that match are printed.
    """
    topic, _ = names(words)
    await cluster_39.create_topic(topic, 3)
    values = await produce(cluster_39, topic, 50)
    first = kiel_groups_here("consume", f"--pattern={topic}$", *words[2:], "--max-messages=20", "-q")
    second = kiel_groups_here(*words, "--max-messages=30", "--quiet")
    third = kiel_groups_here(*words, "--timeout=1", "--quiet")
    assert [(run.returncode, run.stderr) for run in (first, second, third)] == [(0, "")] * 3
    assert [len(run.stdout.split()) for run in (first, second, third)] == [20, 30, 0]
    assert sorted((first.stdout + second.stdout).split()) == sorted(value.decode() for value in values)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_after_a_signal_the_member_leaves_the_group(
    cluster_39: Cluster, words: list[str], number: signal.Signals, status: int
) -> None:
    """
    After a signal, printed records are committed, and the member and its claims are gone. The command reports only the
    new group and a summary.
    """
    topic, group = names(words)
    await cluster_39.create_topic(topic, 2)
    await produce(cluster_39, topic, 10)
    with Running(["-m", "kiel_groups", *words]) as command, zookeeper(cluster_39) as client:
        command.wait_for_lines(10)
        assert command.end(number) == status
        assert client.get_children(GroupLayout(group).members) == []
        assert owners(client, group, topic) == {}
        assert sum(stored_offsets(client, group, topic).values()) == 10
        new, printed = command.errors
        assert new.startswith(f"info: group '{group}' is new")
        assert printed.startswith("info: printed 10 records in ")


async def test_a_closed_output_pipe_ends_the_command_silently(cluster_39: Cluster, words: list[str]) -> None:
    """
    When the output pipe is closed, the command ends even if no further record arrives. Otherwise, the member would keep
    partitions without reading them.
    """
    topic, group = names(words)
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 3)
    with started(words, subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(3):
            process.stdout.readline()
        process.stdout.close()
        assert process.wait(20) == 141
        (line,) = process.stderr.read().splitlines()
        assert line.startswith(f"info: group '{group}' is new".encode())
    with zookeeper(cluster_39) as client:
        assert client.get_children(GroupLayout(group).members) == []


async def test_a_pattern_that_matches_no_topic_is_reported(cluster_39: Cluster, words: list[str]) -> None:
    """The command waits for a topic that matches. A pattern that matches only within a name is often a mistake."""
    topic, _ = names(words)
    await cluster_39.create_topic(topic, 1)
    told = "info: no topic matches --pattern {!r} so far; it is matched from the beginning of a name\n"
    for pattern, is_told in ((topic[1:], True), (topic, False)):
        found = kiel_groups_here("consume", f"--pattern={pattern}", *words[2:], "--timeout=0.1")
        assert (found.returncode, told.format(pattern) in found.stderr) == (0, is_told)


async def test_a_new_group_with_a_similar_name_is_reported(cluster_39: Cluster, words: list[str]) -> None:
    """
    A misspelt group would read everything again, so a new group is reported. Existing groups are not, and --quiet
    reports none.
    """
    topic, group = names(words)
    await cluster_39.create_topic(topic, 1)
    with zookeeper(cluster_39) as client:
        client.ensure_path(f"/consumers/{group}")
    misspelt = [*words[:2], f"--group={group[:-1]}", *words[3:], "--timeout=0.1"]
    assert f"info: group '{group[:-1]}' is new; did you mean '{group}'?\n" in kiel_groups_here(*misspelt).stderr
    assert "is new" not in kiel_groups_here(*words, "--timeout=0.1").stderr
    with zookeeper(cluster_39) as client:
        for name in (group, group[:-1]):
            client.delete(f"/consumers/{name}", recursive=True)
    assert kiel_groups_here(*misspelt, "--quiet").stderr == ""


async def test_a_slow_reader_does_not_block_the_group(cluster_39: Cluster, words: list[str]) -> None:
    """A full pipe does not block the event loop: another member gets partitions, and a signal ends the command."""
    topic, group = names(words)
    await cluster_39.create_topic(topic, 8)
    values = [b"%06d" % number * 100 for number in range(1000)]
    async with Producer(cluster_39.brokers) as producer:
        for value in values:
            producer.produce(topic, value)
    ours, theirs = socket.socketpair()
    with ours, zookeeper(cluster_39) as client, started(words, theirs) as process:
        theirs.close()
        await eventually(lambda: len(owners(client, group, topic)) == 8, "it has all partitions")
        with Running(["-m", "kiel_groups", *words]) as other:
            await eventually(lambda: len(client.get_children(GroupLayout(group).members)) == 2, "another member joins")
            other.wait_for_lines(1)
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            assert other.end(signal.SIGINT) == 130


async def test_verbose_logs_what_the_group_does(cluster_39: Cluster, words: list[str]) -> None:
    """The option -v makes the command also print messages of level info, one line each."""
    topic, group = names(words)
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 1)
    done = kiel_groups_here(*words, "--max=1", "-v")
    assert done.returncode == 0
    assert f"info: group {group}: generation 1 is published" in done.stderr
    timed = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d )?info: ")
    assert all(timed.match(line) for line in done.stderr.splitlines())


@pytest.fixture
def alone(cluster_39: Cluster, words: list[str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs the command with further options and without a group."""
    return lambda *further: kiel_groups_here(
        "consume", words[1], f"--brokers={cluster_39.brokers[0]}", "--timeout=20", *further
    )


async def test_without_a_group_it_starts_at_from_and_commits_nothing(
    cluster_39: Cluster, words: list[str], alone: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """
    Without a group, --from accepts the earliest offset, an offset of one partition, a time, or a duration. The default
    is the latest offset.
    """
    topic, _ = names(words)
    await cluster_39.create_topic(topic, 2)
    async with Producer(cluster_39.brokers) as producer:
        for number in range(6):
            await producer.produce(topic, b"%d" % number, key=b"key", partition=number % 2)
    for where in ("earliest", "2020-01-01T00:00", "3650d"):
        assert sorted(alone(f"--from={where}", "--max=6").stdout.split()) == ["0", "1", "2", "3", "4", "5"]
    assert alone("--from=1", "--partition=1", "--key-separator=\\t", "--max=2").stdout == "key\t3\nkey\t5\n"
    assert alone("--timeout=0.5").stdout == ""
    done = alone("--from=earliest", "--partition=0", "--max=2")
    assert (done.returncode, done.stdout) == (0, "0\n2\n")
    assert done.stderr.startswith("info: printed 2 records in ")


async def test_the_last_records_of_each_partition_are_printed_in_the_users_format(
    cluster_39: Cluster, words: list[str], alone: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """
    With --from -N, each partition starts N offsets before its end, or at its beginning. --format adds no newline.
    """
    topic, _ = names(words)
    await cluster_39.create_topic(topic, 2)
    async with Producer(cluster_39.brokers) as producer:
        for number in range(6):
            await producer.produce(topic, b"%d" % number, key=None if number else b"key", partition=int(number > 1))
    for distance, values in ((1, [1, 5]), (3, [0, 1, 3, 4, 5]), (100, range(6))):
        done = alone(f"--from=-{distance}", "-f", "%s ", f"--max={len(values)}")
        assert (done.returncode, sorted(done.stdout)) == (0, sorted("".join(f"{value} " for value in values)))
    assert (
        alone("--from", "-1", "--partition=1", r"--format=%t:%p %o %K %k%S\n", "--max=1").stdout
        == f"{topic}:1 3 -1 1\n"
    )
    for conflict in ("--json", "--key-separator=,"):
        done = alone("--format=%s", conflict)
        assert done.returncode == 2
        assert f"'{conflict.partition('=')[0]}' does not go with '--format'" in done.stderr


async def test_json_contains_all_fields_of_a_record(
    cluster_39: Cluster, words: list[str], alone: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """
    Each record is one line with a JSON object. Null stays null, and a value that is not text is printed as base64.
    """
    topic, _ = names(words)
    await cluster_39.create_topic(topic, 1)
    async with Producer(cluster_39.brokers) as producer:
        for key, value in ((None, "grün\n".encode()), (b"k", b"\xff\x00"), (b"", b"")):
            await producer.produce(topic, value, key=key)
    place = {"topic": topic, "partition": 0}
    assert [json.loads(line) for line in alone("--from=earliest", "--json", "--max=3").stdout.splitlines()] == [
        place | {"offset": 0, "key": None, "value": "grün\n"},
        place | {"offset": 1, "key": "k", "value_base64": "/wA="},
        place | {"offset": 2, "key": "", "value": ""},
    ]


async def test_a_new_group_starts_at_from(cluster_39: Cluster, words: list[str]) -> None:
    """With --from=latest, a new group skips existing records, and commits the end of the log."""
    topic, group = names(words)
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 5)
    with zookeeper(cluster_39) as client:
        running = asyncio.to_thread(kiel_groups_here, *words, "--from=latest", "--max-messages=1")
        command = asyncio.ensure_future(running)
        await eventually(lambda: stored_offsets(client, group, topic) == {0: 5}, "the end of the log is committed")
        await produce(cluster_39, topic, 1, first=5)
        assert (await command).stdout == "5\n"


async def test_a_static_member_keeps_its_place_and_store_selects_the_offset_store(
    cluster_39: Cluster, words: list[str]
) -> None:
    """
    The place of a static member in the plan remains after its end. --store is a group setting, so another value is
    refused.
    """
    topic, group = names(words)
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 5)
    layout = GroupLayout(group)
    outcome = kiel_groups_here(*words, "--instance-id=shelf-1", "--store=broker-v0", "--max=5", "-q")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    with zookeeper(cluster_39) as client:
        left = MemberAssignment.parse(client.get(layout.assignment("shelf-1"))[0], "assignment")
        assert left.partitions == {TopicPartition(topic, 0)}
        assert stored_offsets(client, group, topic) == {0: 5}
    outcome = kiel_groups_here(*words, "--max=1")
    assert outcome.returncode == 2
    assert "store is 'broker-v0' there and 'zookeeper' here" in outcome.stderr


async def test_a_replaced_static_member_reports_one_error(cluster_39: Cluster, words: list[str]) -> None:
    """A later member with the same --instance-id replaces the earlier member, which ends with an error and status 1."""
    topic, group = names(words)
    await cluster_39.create_topic(topic, 1)
    command = ["-m", "kiel_groups", *words, "--instance-id=shelf-1", "-q"]
    with Running(command, REPOSITORY) as first, zookeeper(cluster_39) as client:
        await eventually(lambda: owners(client, group, topic), "the first member owns the partition")
        with Running(command, REPOSITORY):
            assert first.wait() == 1
    (error,) = (line for line in first.errors if "error: " in line)
    assert f"error: group {group}: this member stops: another member of instance 'shelf-1' is alive" in error


@pytest.mark.parametrize(
    ("further", "message"),
    [
        (["--from=tomorrow"], "--from: 'tomorrow' given; expected 'earliest', 'latest', an offset, '-N'"),
        (["--from=7"], "--from: 7 given; the log of {topic}:0 has 0 to 0"),
        (["--partition=9"], "--partition: 9 given; {topic} has 0 to 1"),
        (["--allocator=sticky"], "'--allocator' goes with '--group' only."),
        (["--pattern=a"], "Name topics, or give --pattern, and not both."),
        (["--instance-id=a"], "'--instance-id' goes with '--group' only."),
        (["--group=g", "--partition=0", "--zookeeper=z"], "'--partition' does not go with '--group'; a group shares"),
        (["--group=g", "--no-group"], "'--group' does not go with '--no-group'."),
        (["--group=g"], "Missing option '--zookeeper' (env var: 'KIEL_GROUPS_ZOOKEEPER'). A group needs it."),
        (["--group=g", "--zookeeper=z", "--from=5"], "'--from': '5' given; a group resumes at its offsets"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
async def test_mistakes_give_one_line(
    cluster_39: Cluster,
    words: list[str],
    alone: Callable[..., subprocess.CompletedProcess[str]],
    further: list[str],
    message: str,
) -> None:
    """The line says what is wrong, and may suggest a remedy."""
    topic, _ = names(words)
    await cluster_39.create_topic(topic, 2)
    done = alone(*further)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message.format(topic=topic) in done.stderr


async def test_no_group_overrides_the_group_of_the_configuration_file(
    cluster_39: Cluster, words: list[str], alone: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """
    A group in the configuration file conflicts with --partition, and the error names the file. With --no-group the
    partition is read.
    """
    topic, group = names(words)
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 3)
    file = tmp_path / "kiel.toml"
    file.write_text(f"zookeeper = '{cluster_39.zk_hosts}'\n[consume]\ngroup = '{group}'\n")
    wanted = (topic, "--from=earliest", "--partition=0", "--max=3", f"--brokers={cluster_39.brokers[0]}")
    refused = kiel_groups_here("--config", str(file), "consume", *wanted)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert f"the group is named in {file}, and '--no-group' ignores it" in refused.stderr
    done = kiel_groups_here("--config", str(file), "consume", "--no-group", *wanted)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 3)
    with zookeeper(cluster_39) as client:
        assert client.exists(GroupLayout(group).root) is None
