"""Shell completion: the scripts of ``kiel-groups completion``, and the words that they suggest."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kiel_groups.allocators import ALLOCATORS
from kiel_groups.embedded import Cluster
from tests.helpers.cluster_data import zookeeper
from tests.helpers.commands import environment, kiel_groups
from tests.helpers.completion import completed

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def without_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the user's settings from the environment."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("KIEL_GROUPS_ZOOKEEPER", raising=False)


@pytest.mark.parametrize(
    ("shell", "words"),
    [
        ("bash", ["complete -o nosort"]),
        ("zsh", ["#compdef kiel-groups", "|| { autoload -Uz compinit && compinit }\n    compdef _kiel"]),
        ("fish", ["complete --no-files", 'string split --max 1 "," $completion']),
    ],
)
def test_each_shell_gets_a_script(shell: str, words: list[str]) -> None:
    """
    The script registers the command, and its creation needs no installed shell. zsh's script loads ``compinit`` if
    needed.
    """
    done = kiel_groups("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(word in done.stdout for word in words)
    assert "_KIEL_GROUPS_COMPLETE=" in done.stdout


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (
            ["bash", "-c", 'eval "$("$PYTHON" -m kiel_groups completion bash)" && complete -p kiel-groups'],
            "_kiel_groups_completion kiel-groups",
        ),
        (
            ["zsh", "-f", "-c", 'eval "$("$PYTHON" -m kiel_groups completion zsh)" && print $_comps[kiel-groups]'],
            "_kiel_groups_completion",
        ),
        (
            ["fish", "--no-config", "-c", "$PYTHON -m kiel_groups completion fish | source; complete -c kiel-groups"],
            "_kiel_groups_completion",
        ),
    ],
    ids=("bash", "zsh", "fish"),
)
def test_a_shell_accepts_its_script(command: list[str], shown: str) -> None:
    """The shell evaluates the script as the help says, and then has a completion for the command."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]}")
    done = subprocess.run(
        command,
        env=environment() | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert shown in done.stdout


def test_bash_lists_the_commands(tmp_path: Path) -> None:
    """After its script, bash itself completes a command, as at the key Tab."""
    program = tmp_path / "kiel-groups"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kiel_groups "$@"\n')
    program.chmod(0o755)
    script = """
    eval "$(kiel-groups completion bash)"
    COMP_WORDS=(kiel-groups d) COMP_CWORD=1
    _kiel_groups_completion kiel-groups d kiel-groups
    echo "${COMPREPLY[@]}"
    """
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], env=environment() | {"PATH": path}, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("describe doctor drain demo\n", "")


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("kiel-groups conn", ["connectors", "connector-plugins"]),
        ("kiel-groups topics d", ["delete", "describe"]),
        ("kiel-groups cluster up --kafka", ["--kafka-version"]),
        ("kiel-groups produce --codec g", ["gzip"]),
        ("kiel-groups completion ", ["bash", "zsh", "fish"]),
        ("kiel-groups serve --allocator ", list(ALLOCATORS)),
        ("kiel-groups consume --allocator st", ["sticky"]),
    ],
)
def test_commands_options_and_choices_are_completed(line: str, offered: list[str]) -> None:
    """The suggestions start with the last word of the line."""
    assert completed(line) == offered


async def test_topics_are_completed(cluster_39: Cluster, unique: Callable[[str], str], tmp_path: Path) -> None:
    """Topics are suggested if the line, the environment or the configuration file names a ZooKeeper."""
    topic = unique("completed")
    await cluster_39.create_topic(topic, 1)
    start = topic[:-3]
    assert completed(f"kiel-groups topics describe --zookeeper {cluster_39.zk_hosts} {start}") == [topic]
    assert completed(f"kiel-groups produce {start}", KIEL_GROUPS_ZOOKEEPER=cluster_39.zk_hosts) == [topic]
    (tmp_path / "kiel-groups").mkdir()
    (tmp_path / "kiel-groups" / "config.toml").write_text(f"zookeeper = '{cluster_39.zk_hosts}'\n")
    assert completed(f"kiel-groups consume {start}") == [topic]


@pytest.mark.parametrize("words", ["describe", "release", "weights set", "serve --group", "consume --group"])
def test_groups_are_completed(cluster_39: Cluster, unique: Callable[[str], str], words: str) -> None:
    """Groups are suggested for each option that names a group. This group only has the znodes of a Java consumer."""
    group = unique("completed")
    with zookeeper(cluster_39) as client:
        client.ensure_path(f"/consumers/{group}/ids")
    assert completed(f"kiel-groups {words} {group[:-3]}", KIEL_GROUPS_ZOOKEEPER=cluster_39.zk_hosts) == [group]


def test_members_are_completed(cluster_39: Cluster, unique: Callable[[str], str]) -> None:
    """The members of the group that the line names are suggested."""
    group = unique("completed")
    with zookeeper(cluster_39) as client:
        client.ensure_path(f"/kiel-groups/{group}/members/{group}_host-1-aaaa")
        line = f"kiel-groups release {group} {group}_h"
        assert completed(line, KIEL_GROUPS_ZOOKEEPER=cluster_39.zk_hosts) == [f"{group}_host-1-aaaa"]
        client.delete(f"/kiel-groups/{group}", recursive=True)


@pytest.mark.parametrize("hosts", ["", "127.0.0.1:1", "no address"])
def test_without_zookeeper_nothing_is_offered(hosts: str) -> None:
    """No error is printed, because it would appear inside the line that the user types."""
    assert (
        completed("kiel-groups consume x", patience_s=1.0, **({"KIEL_GROUPS_ZOOKEEPER": hosts} if hosts else {})) == []
    )


def test_a_broken_configuration_file_does_not_break_completion(tmp_path: Path) -> None:
    """A broken configuration file causes no error during completion. The next command reports it."""
    (tmp_path / "kiel-groups").mkdir()
    (tmp_path / "kiel-groups" / "config.toml").write_text("brokres = ''\n")
    assert completed("kiel-groups topics li") == ["list"]
