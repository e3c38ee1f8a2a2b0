"""``kiel-groups describe`` fits the terminal, even with many members and partitions."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.contents import GroupState, MemberAssignment, MemberInfo
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition
from tests.helpers.cluster_data import owners, zookeeper
from tests.helpers.commands import REPOSITORY, Running, environment
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

ROWS, COLUMNS = 24, 80
MEMBERS, PARTITIONS = 12, 64


@pytest.fixture
def large_group(cluster_39: Cluster, unique: Unique) -> str:
    """Write the znodes of a group of twelve members with long ids, and return its name. Its topic does not exist."""
    name, topic = unique("group"), "a-topic-with-quite-a-long-name"
    layout = GroupLayout(name)
    with zookeeper(cluster_39) as client:
        client.create(layout.group_state, GroupState(generation=1, state="done", leader="x").encode(), makepath=True)
        for number in range(MEMBERS):
            member = f"{name}_host-{number}.a-long-domain.example-{1_700_000_000_000 + number}-{0xABCD00 + number:x}"
            host = f"host-{number}.a-long-domain.example"
            info = MemberInfo(member_id=member, session_timeout_ms=6_000, subscription=(topic,), host=host)
            client.create(layout.member(member), info.encode(), makepath=True)
            share = [TopicPartition(topic, partition) for partition in range(number, PARTITIONS, MEMBERS)]
            client.create(layout.assignment(member), MemberAssignment(1, member, frozenset(share)).encode())
            for partition in share:
                client.create(
                    f"{layout.topic_owners(topic)}/{partition.partition}", f"{member}-0".encode(), makepath=True
                )
    return name


@contextmanager
def terminal(
    cluster: Cluster, *arguments: str, term: str, rows: int = ROWS
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run ``describe`` on a terminal of 80 columns, and yield the process and the descriptor of its output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, COLUMNS, 0, 0))
    command = [sys.executable, "-m", "kiel_groups", "describe", "--zookeeper", cluster.zk_hosts, *arguments]
    env = {key: value for key, value in environment().items() if key not in ("LINES", "COLUMNS")} | {"TERM": term}
    with subprocess.Popen(command, cwd=REPOSITORY, env=env, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        try:
            yield process, ours
        finally:
            process.kill()
            os.close(ours)


def read_until(descriptor: int, enough: Callable[[str], bool]) -> str:
    """Read until ``enough`` accepts the text, or until the writer ends."""
    output = b""
    while not enough(output.decode(errors="ignore")):
        try:
            output += os.read(descriptor, 65536)
        except OSError:
            break
    return output.decode().replace("\r\n", "\n")


def test_a_large_group_is_shown_in_80_columns(cluster_39: Cluster, large_group: str) -> None:
    """Every row is shown. Long cells are wrapped, not cut."""
    with terminal(cluster_39, large_group, term="dumb") as (process, screen):
        output = read_until(screen, lambda _: False)
        assert process.wait(20) == 0
    lines = output.splitlines()
    assert "\x1b" not in output
    assert max(map(len, lines)) <= COLUMNS
    rows = [line.split() for line in lines]
    assert _listed(output) == [str(each) for each in range(PARTITIONS)]
    assert sum(row[0].startswith("abcd") for row in rows if row) == MEMBERS


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_watch_fits_the_terminal_or_writes_no_escape_codes(cluster_39: Cluster, large_group: str, term: str) -> None:
    """On a terminal that can be cleared, one page is shown at a time. On other terminals a line separates the pages."""
    mark = "\x1b[2J" if term == "xterm" else "-" * 78
    with terminal(cluster_39, large_group, "--watch", "0.1", term=term) as (process, screen):
        output = read_until(screen, lambda text: text.count(mark) >= 3)
        process.send_signal(signal.SIGINT)
        read_until(screen, lambda _: False)
        assert process.wait(20) == 130
    page = output.split(mark)[1]
    assert f"group {large_group}"[:COLUMNS] in page
    if term == "dumb":
        assert "\x1b" not in output
    else:
        assert len(page.splitlines()) < ROWS
        assert " lines that do not fit here" in page


def _listed(page: str) -> list[str]:
    """Return the numbers of the partitions that a page lists."""
    rows = [line.split() for line in page.splitlines()]
    return [row[0] for row in rows if len(row) > 4 and row[0].isdigit()]


async def test_a_watch_fills_the_terminal_with_partitions(cluster_39: Cluster, unique: Unique) -> None:
    """
    Rows that the three members do not need show partitions. The watch also shows how many partitions are not listed.
    """
    topic, name = unique("t"), unique("g")
    await cluster_39.create_topic(topic, PARTITIONS)
    arguments = ["-m", "kiel_groups", "consume", topic, f"--group={name}", f"--brokers={cluster_39.brokers[0]}"]
    arguments += [f"--zookeeper={cluster_39.zk_hosts}", "-q"]
    with ExitStack() as members, zookeeper(cluster_39) as client:
        for _ in range(3):
            members.enter_context(Running(arguments))
        await eventually(
            lambda: len({owner for owner, _ in owners(client, name, topic).values()}) == 3,
            "three members own partitions",
        )
        # A plan whose cause names two members that came later takes more lines than the first plan of all.
        rows = ROWS + 8
        with terminal(cluster_39, name, "--watch", "0.1", term="xterm", rows=rows) as (_, screen):
            settled = f"{PARTITIONS} of {PARTITIONS} partitions are owned"
            pages = read_until(screen, lambda text: settled in text.rpartition("\x1b[2J")[0]).split("\x1b[2J")
    page = next(page for page in pages if settled in page)
    lines, listed = page.splitlines(), _listed(page)
    assert rows - 4 <= len(lines) < rows - 1
    assert len(listed) >= 2
    assert f"{PARTITIONS - len(listed)} of {PARTITIONS} partitions are not listed" in " ".join(" ".join(lines).split())
