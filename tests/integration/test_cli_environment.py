"""The command line in a broken environment: one line with the cause, and an exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from tests.helpers.cluster_data import zookeeper

pytestmark = pytest.mark.integration


def kiel_groups(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command with replaced environment variables. An empty value removes the variable."""
    env = {name: value for name, value in (os.environ | environment).items() if value}
    command = [sys.executable, "-m", "kiel_groups", *arguments]
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    return subprocess.run(command, env=env, capture_output=True, encoding=encoding, timeout=60, check=False)


def test_without_java_the_error_says_what_to_install() -> None:
    """The error of the demo says that Java is missing and how to install it."""
    done = kiel_groups("demo", PATH="/nonexistent", JAVA_HOME="")
    assert done.returncode == 1
    assert done.stderr.startswith("error: Java is needed to run ZooKeeper and Kafka")
    assert "apt install default-jre-headless" in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_jars_and_maven_the_error_says_what_to_install(tmp_path: Path) -> None:
    """With an empty cache and no Maven to fill it, the error of the demo says what to install."""
    done = kiel_groups("demo", PATH="/nonexistent", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "Maven is needed to fetch kafka-0.8.2.2" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """If a file exists at the path of the cache folder, the error has that path."""
    (tmp_path / "kiel-groups").write_text("in the way")
    done = kiel_groups("demo", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 1
    assert f"the cache of jars at {tmp_path}/kiel-groups/jars cannot be used" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["--help"], ["topics", "create", "--help"], ["cluster", "status"], ["completion", "zsh"]]
)
def test_a_closed_output_pipe_ends_a_command_silently(words: list[str], tmp_path: Path) -> None:
    """When the output pipe is closed, the status is 141, as after SIGPIPE, and no error is printed."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        done = subprocess.run(
            [sys.executable, "-m", "kiel_groups", *words],
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stdout=output,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("words", [["cluster", "status"], ["--help"], ["--version"]])
def test_an_unwritable_output_gives_one_line(tmp_path: Path, words: list[str]) -> None:
    """On a full disk the command fails with one line, without a traceback."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kiel_groups", *words],
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.decode() == "error: standard output cannot be written: No space left on device\n"


def test_a_terminal_in_latin_1_gets_plainer_characters(cluster_39: Cluster, unique: Callable[[str], str]) -> None:
    """Lines of tables and our arrows are replaced, and a check exits with its own status, not with a false 1."""
    name, topic = unique("group"), unique("topic")
    ZooKeeperTopics(cluster_39.zk_hosts).create(topic, 1)
    foreign = f"{name}_jü→-1-abcdef01"
    with zookeeper(cluster_39) as client:
        client.create(f"/consumers/{name}/offsets/{topic}/0", b"0", makepath=True)
        client.create(f"/consumers/{name}/ids/{foreign}", b"{}", ephemeral=True, makepath=True)
        commands = (["lag", name, "--check", "5"], ["describe", name], ["describe", name, "--json"])
        at = ("--zookeeper", cluster_39.zk_hosts)
        outcomes = [kiel_groups(*words, *at, PYTHONIOENCODING="latin-1") for words in commands]
    assert [(outcome.returncode, outcome.stderr) for outcome in outcomes] == [(0, "")] * 3
    checked, described, document = (outcome.stdout for outcome in outcomes)
    assert " -----" in checked
    assert f"{name}_jü->-1-abcdef01" in described
    assert foreign in json.dumps(json.loads(document), ensure_ascii=False)
