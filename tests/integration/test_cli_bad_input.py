"""Mistakes on the command line: each gives one line on standard error, and a documented exit status."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kiel_groups.allocators import ALLOCATORS
from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.commands import kiel_groups, kiel_groups_here

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]

FAILED, WRONG = 1, 2

OWN_ALLOCATORS = """
def raises(members, partitions):
    raise ValueError("no\\nidea")

def twice(members, partitions):
    topic = partitions[0].rpartition(":")[0]
    return {members[0]: {topic: [0, 0]}}

number = 3
"""


@contextmanager
def occupied_port(*, listening: bool) -> Iterator[int]:
    """Bind a local port for the duration of the block."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if listening:
            taken.listen()
        yield taken.getsockname()[1]


@pytest.fixture
def topic(cluster_39: Cluster, unique: Unique) -> str:
    """Return the name of a topic that does not exist yet."""
    return unique("topic")


@pytest.fixture
def consume(
    cluster_39: Cluster, unique: Unique, topic: str, tmp_path: Path
) -> Callable[..., tuple[int, list[str], list[str]]]:
    """
    Return a function that runs ``kiel-groups consume`` with given options, and returns its status and its lines of
    output and errors.
    """

    def run(*further: str, **replaced: str) -> tuple[int, list[str], list[str]]:
        options = {"brokers": cluster_39.brokers[0], "zookeeper": cluster_39.zk_hosts, "group": unique("group")}
        words = [f"--{name}={value}" for name, value in (options | replaced).items()]
        done = kiel_groups_here("consume", topic, *words, *further, folder=tmp_path)
        return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()

    return run


Consume = Callable[..., tuple[int, list[str], list[str]]]


def assert_one_line(outcome: tuple[int, list[str], list[str]], status: int, *words: str) -> None:
    """Assert that the only output is one line on standard error, with these words."""
    assert (outcome[0], outcome[1], len(outcome[2])) == (status, [], 1), outcome
    assert outcome[2][0].startswith("error: ")
    for word in words:
        assert word in outcome[2][0]


def test_a_missing_zookeeper_is_an_error(consume: Consume) -> None:
    """The error has the address at which no server answers."""
    with occupied_port(listening=False) as port:
        outcome = consume(zookeeper=f"127.0.0.1:{port}")
    assert_one_line(outcome, FAILED, f"no ZooKeeper answered at 127.0.0.1:{port}", "is it running")


def test_a_missing_chroot_is_an_error(consume: Consume, cluster_39: Cluster) -> None:
    """The error names the missing chroot, which is not created."""
    outcome = consume(zookeeper=f"{cluster_39.zk_hosts}/not/there")
    assert_one_line(outcome, WRONG, "the chroot /not/there does not exist", "give the same one, or none")
    with zookeeper(cluster_39) as client:
        assert client.exists("/not") is None


async def test_missing_brokers_are_an_error(consume: Consume, cluster_39: Cluster, topic: str) -> None:
    """The error has the address at which no broker answers."""
    await cluster_39.create_topic(topic, 1)
    with occupied_port(listening=False) as port:
        status, out, (new, *errors) = consume(brokers=f"127.0.0.1:{port}")
    assert "is new" in new
    outcome = (status, out, errors)
    assert_one_line(outcome, FAILED, f"no broker answered: 127.0.0.1:{port}", "Connection refused")


def test_an_unknown_topic_is_an_error(consume: Consume, cluster_39: Cluster, topic: str, unique: Unique) -> None:
    """The error names the topic and the commands that list and create topics. The group is not joined."""
    group = unique("group")
    outcome = consume(group=group)
    assert_one_line(outcome, WRONG, f"topic {topic!r} does not exist", "topics list", "topics create")
    with zookeeper(cluster_39) as client:
        assert client.exists(GroupLayout(group).root) is None


@pytest.mark.parametrize(
    ("replaced", "words"),
    [
        ({"group": "a/b"}, "group: 'a/b' is not a legal name"),
        ({"brokers": "host:port"}, "brokers: 'host:port' is not an address"),
        ({"zookeeper": "a:1/x,b:2"}, "the chroot '/x,b:2' must be one path"),
        ({"session-timeout-ms": "5"}, "--session-timeout-ms: 5 given"),
        ({"session-timeout-ms": "soon"}, "'soon' is not a valid integer"),
        ({"max": "0"}, "'--max' / '--max-messages': 0 is not in the range x>=1"),
        ({"timeout": "0"}, "'--timeout': '0' is not a number of seconds ≥ 0.001"),
        ({"topic": "x"}, "No such option '--topic'"),
        (
            {"allocator": "stiky"},
            f"there is no allocator 'stiky'; expected one of {', '.join(ALLOCATORS)}; did you mean 'sticky'? A function"
            " of yours is named 'module:function'",
        ),
        ({"allocator": "nowhere:function"}, "--allocator: there is no module 'nowhere'"),
        ({"allocator": "mine:missing"}, "--allocator: module 'mine' has no 'missing'"),
        ({"allocator": "mine:number"}, "--allocator: 'mine:number' is a value of type int; expected a function"),
        ({"allocator": "broken:function"}, "--allocator: 'broken' cannot be imported: it raised ZeroDivisionError"),
    ],
    ids=lambda value: "".join(value) if isinstance(value, dict) else None,
)
def test_invalid_options_are_refused(consume: Consume, tmp_path: Path, replaced: dict[str, str], words: str) -> None:
    """The error names the option and its value."""
    (tmp_path / "mine.py").write_text(OWN_ALLOCATORS)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    assert_one_line(consume(**replaced), WRONG, words)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("raises", "allocator raises: it raised ValueError: no idea"),
        ("twice", "0 was handed out twice, to "),
    ],
)
async def test_an_allocator_that_fails_does_not_stop_the_group(
    consume: Consume, cluster_39: Cluster, topic: str, tmp_path: Path, function: str, words: str
) -> None:
    """One line names the function and its error. The records are still delivered, so the status is 0."""
    (tmp_path / "mine.py").write_text(OWN_ALLOCATORS)
    await cluster_39.create_topic(topic, 2)
    values = await produce(cluster_39, topic, 6)
    status, printed, (line,) = consume("--max=6", "-q", allocator=f"mine:{function}")
    assert (status, sorted(printed)) == (0, sorted(value.decode() for value in values))
    assert " error: group " in line
    assert f"allocator {function}: " in line
    assert words in line


@pytest.mark.parametrize("server", ["zookeeper", "broker"])
def test_a_port_in_use_is_an_error(server: str) -> None:
    """The error of the demo names the port that another process uses."""
    with occupied_port(listening=True) as port:
        done = kiel_groups("demo", f"--{server}-port={port}")
    assert_one_line((done.returncode, [], done.stderr.splitlines()), FAILED, f"port {port} of 127.0.0.1", "in use")


@pytest.mark.parametrize(
    ("option", "file", "words"),
    [
        ("--records", "missing", "No such file"),
        ("--records", ".", "directory"),
        ("--records", "empty", "has 0 lines"),
        ("--svg", ".", "expected a file in a folder that exists"),
        ("--svg", "nowhere/demo.svg", "expected a file in a folder that exists"),
    ],
)
def test_an_unusable_file_of_the_demo_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, file: str, words: str
) -> None:
    """The error names the file, before the demo starts any server."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()
    done = kiel_groups_here("demo", option, file)
    assert_one_line((done.returncode, done.stdout.splitlines(), done.stderr.splitlines()), WRONG, file, words)
