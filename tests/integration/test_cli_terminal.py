"""``describe`` and ``groups`` on terminals and pipes: colours only where wanted, and no error at a closed pipe."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.contents import GroupState
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.cluster_data import zookeeper
from tests.helpers.commands import at_a_terminal, environment

pytestmark = pytest.mark.integration

ESCAPE = b"\x1b["
#: The start of the escape codes of red and bold red.
COLOURS = (ESCAPE + b"3", ESCAPE + b"1;3")


@pytest.fixture
def group(cluster_39: Cluster, unique: Callable[[str], str]) -> Iterator[str]:
    """Provide the name of a group with a problem that is shown in red: a foreign consumer."""
    name = unique("group")
    layout = GroupLayout(name)
    with zookeeper(cluster_39) as client:
        client.create(layout.group_state, GroupState(generation=1, state="done", leader="x").encode(), makepath=True)
        client.create(f"{layout.ids}/{name}_host-1-abcdef01", b"{}", ephemeral=True, makepath=True)
        yield name


def command(cluster: Cluster, *words: str) -> list[str]:
    """Return the command with the address of the cluster."""
    return [sys.executable, "-m", "kiel_groups", *words, f"--zookeeper={cluster.zk_hosts}"]


def test_no_color_is_respected(cluster_39: Cluster, group: str) -> None:
    """A problem is red on a terminal, but not with NO_COLOR. The output to a pipe has no escape codes."""
    words = command(cluster_39, "describe", group)
    assert any(colour in at_a_terminal(words) for colour in COLOURS)
    assert not any(colour in at_a_terminal(words, NO_COLOR="1") for colour in COLOURS)
    piped = subprocess.run(words, env=environment(), capture_output=True, timeout=60, check=True)
    assert ESCAPE not in piped.stdout


@pytest.mark.parametrize("words", [["describe", "{}"], ["describe", "{}", "--json"], ["groups"], ["groups", "--json"]])
def test_a_closed_output_pipe_is_no_error(cluster_39: Cluster, group: str, words: list[str]) -> None:
    """
    When the output pipe is closed, as after ``| head``, the status is 141, as after SIGPIPE, and no error is printed.
    """
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            command(cluster_39, *(word.format(group) for word in words)),
            env=environment(),
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")
