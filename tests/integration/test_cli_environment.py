"""The command line in a broken environment: one line with the cause, and an exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration


def kiel_groups(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command with replaced environment variables. An empty value removes the variable."""
    env = {name: value for name, value in (os.environ | environment).items() if value}
    command = [sys.executable, "-m", "kiel_groups", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


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
