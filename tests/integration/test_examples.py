"""Every program in examples/ does what its docstring says."""

from __future__ import annotations

import re
import runpy
import signal
import sqlite3
import subprocess
import sys
import threading
import tomllib
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

from kiel_groups import Record
from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.closed_sessions import close_sessions_below
from tests.helpers.cluster_data import produce, stored_offsets, zookeeper
from tests.helpers.commands import REPOSITORY, Running, environment
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

EXAMPLES = REPOSITORY / "examples"
TESTED = {
    "commit_by_hand.py",
    "counter.py",
    "fenced_sink.py",
    "listen.py",
    "maker.py",
    "produce_lines.py",
    "sharded_crawlers.py",
    "spark_archive.py",  # in tests/spark/test_archive_command.py
    "spark_lake.py",  # its account, in tests/project/test_lake_example.py
    "worker.py",
}
#: Projects, each with a test module of its own: ``test_example_*.py``.
PROJECTS = {
    "blocking_worker/send_orders.py",
    "exactly_once_postgres/count_views.py",
    "web_service/service.py",
}

Unique = Callable[[str], str]


def test_no_example_goes_untested() -> None:
    """Every example has a test in this module, or in the module that ``TESTED`` names."""
    assert {path.name for path in EXAMPLES.glob("*.py")} == TESTED
    projects = {path.parent for path in EXAMPLES.glob("*/pyproject.toml")}
    assert {str(path.relative_to(EXAMPLES)) for each in projects for path in each.glob("*.py")} == PROJECTS


@pytest.mark.parametrize("project", sorted(PROJECTS))
def test_a_project_is_complete(project: str) -> None:
    """A project has a README, and metadata from which it can be built, with its module."""
    path = EXAMPLES / project
    metadata = tomllib.loads((path.parent / "pyproject.toml").read_text())
    assert metadata["tool"]["setuptools"]["py-modules"] == [path.stem]
    assert list(metadata["project"]["scripts"].values()) == [f"{path.stem}:run"]
    page = (path.parent / "README.rst").read_text()
    assert path.name in page
    sections = ["Run it", "What it guarantees", "What to change"]
    assert [section for section in sections if f"\n{section}\n---" not in page] == []


@pytest.mark.parametrize("example", sorted(TESTED | PROJECTS))
def test_without_arguments_an_example_prints_its_usage(example: str) -> None:
    """An example without arguments prints its usage, without a traceback."""
    command = [sys.executable, str(EXAMPLES / example)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith(f"usage: {Path(example).name} ")


def send_lines(cluster: Cluster, topic: str, lines: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the example producer with these lines as its input."""
    command = [sys.executable, str(EXAMPLES / "produce_lines.py"), cluster.brokers[0], topic]
    text = "".join(f"{line}\n" for line in lines)
    return subprocess.run(
        command, input=text, env=environment(), capture_output=True, text=True, timeout=30, check=False
    )


async def test_the_listener_counts_the_lines_of_the_producer(cluster_39: Cluster, unique: Unique) -> None:
    """
    Lines with equal keys go to the same partition. The listener is notified of its partitions, and at its end prints
    the counts of each.
    """
    topic = unique("topic")
    await cluster_39.create_topic(topic, 4)
    with Running([str(EXAMPLES / "listen.py"), cluster_39.brokers[0], cluster_39.zk_hosts, topic]) as listener:
        assigned = listener.wait_for_lines(1)[0]
        assert assigned.split() == ["assigned", *(f"{topic}:{partition}" for partition in range(4))]
        sent = send_lines(cluster_39, topic, [f"visitor-{number % 7} page-{number}" for number in range(70)])
        assert sent.returncode == 0, sent.stderr
        counts = [int(count) for count in re.findall(r"^partition \d: .*, records: (\d+)$", sent.stdout, re.MULTILINE)]
        assert sum(counts) == 70
        assert all(count % 10 == 0 for count in counts)
        with zookeeper(cluster_39) as client:
            await eventually(
                lambda: sum(stored_offsets(client, "views", topic).values()) == 70, "all views are counted"
            )
        assert listener.end(signal.SIGINT) == 0
        revoked = re.findall(r"revoked \S+ with (\d+) views of (\d+) visitors", "\n".join(listener.lines))
        assert sum(int(views) for views, _ in revoked) == 70
        assert sum(int(visitors) for _, visitors in revoked) == 7
        assert listener.errors == ["left the group"]


def test_the_producer_names_a_missing_topic(cluster_39: Cluster, unique: Unique) -> None:
    """If the topic is missing, the last line names it, there is no traceback, and the status is 1."""
    topic = unique("missing")
    sent = send_lines(cluster_39, topic, ["a line"])
    assert sent.returncode == 1
    assert sent.stderr.splitlines()[-1].startswith(f"error: no broker knows the topic {topic}")
    assert "Traceback" not in sent.stderr


async def test_the_worker_that_commits_by_hand_loses_nothing_at_a_kill(
    cluster_39: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """
    A worker that is killed after its second batch loses no record, because the next run gets the uncommitted records.
    """
    topic = unique("topic")
    await cluster_39.create_topic(topic, 2)
    archive = tmp_path / "archive"
    arguments = [str(EXAMPLES / "commit_by_hand.py"), cluster_39.brokers[0], cluster_39.zk_hosts, topic, str(archive)]
    values = await produce(cluster_39, topic, 250)
    with Running(arguments) as first:
        lines = first.wait_for_lines(2)
        assert [line.partition(",")[0] for line in lines] == ["records written: 100", "records written: 200"]
        first.end(signal.SIGKILL)
    with zookeeper(cluster_39) as client:
        assert sum(stored_offsets(client, "archive", topic).values()) == 200
        close_sessions_below(client, GroupLayout("archive").root)
    values += await produce(cluster_39, topic, 50, first=250)
    with Running(arguments) as second:
        second.wait_for_lines(1)
        assert second.end(signal.SIGINT) == 0
        assert second.errors == ["left the group"]
    delivered = Counter(archive.read_bytes().splitlines())
    assert set(delivered) == set(values)


async def test_the_sink_refuses_writes_of_a_stale_owner(cluster_39: Cluster, unique: Unique, tmp_path: Path) -> None:
    """
    A process is stopped with a record in flight until its session has expired. When it resumes, its write is refused.
    """
    topic, file = unique("topic"), tmp_path / "sink.db"
    await cluster_39.create_topic(topic, 1)
    values = await produce(cluster_39, topic, 5)
    place = (cluster_39.brokers[0], cluster_39.zk_hosts, topic, str(file))
    arguments = [str(EXAMPLES / "fenced_sink.py"), *place, "--work"]
    with Running([*arguments, "5"]) as stopped:
        await eventually(lambda: stopped.lines, "it owns the partition, and works")
        # The first record is in flight for five seconds.
        stopped.process.send_signal(signal.SIGSTOP)
        with Running([*arguments, "0.1"]) as other:
            await eventually(lambda: f"stored {topic}:0 4" in other.lines, "the other process has stored all records")
            stopped.process.send_signal(signal.SIGCONT)
            # After SIGCONT the process finishes the record in flight, and gets no further record.
            assert stopped.wait_for_lines(2) == [f"working on {topic}:0 0", f"refused {topic}:0 0"]
            assert [line for line in other.lines if not line.startswith("working on ")] == [
                f"stored {topic}:0 {offset}" for offset in range(5)
            ]
            assert [sink.end(signal.SIGINT) for sink in (stopped, other)] == [0, 0]
    with sqlite3.connect(file) as db:
        stored = db.execute("SELECT value FROM vals ORDER BY position").fetchall()
    assert [value for (value,) in stored] == values


def sink(file: Path) -> Any:
    """Return the example's sink, with a database of its own."""
    return runpy.run_path(str(EXAMPLES / "fenced_sink.py"))["Sink"](str(file))


def rows(file: Path) -> list[tuple[int, bytes]]:
    """Return the position and the value of each row in the sink's database."""
    with sqlite3.connect(file) as db:
        return db.execute("SELECT position, value FROM vals ORDER BY position").fetchall()


def colour(offset: int, value: bytes) -> Record:
    return Record("colours", 0, offset, None, value)


@pytest.mark.parametrize("token", [7, 9], ids=["the same owner", "a later owner"])
def test_the_sink_stores_a_recreated_topic_and_a_replay(tmp_path: Path, token: int) -> None:
    """A record with an offset that the sink has stored before replaces the stored value."""
    file = tmp_path / "sink.db"
    under_test = sink(file)
    assert all(under_test.store(colour(offset, b"old"), 7) for offset in range(3))
    assert under_test.store(colour(0, b"new"), token)
    assert under_test.store(colour(1, b"new"), token)
    assert rows(file) == [(0, b"new"), (1, b"new"), (2, b"old")]


def test_the_sink_stores_once_what_is_delivered_twice(tmp_path: Path) -> None:
    """
    After a crash, stored records that were not committed are delivered again to the next owner. Writes of the earlier
    owner are refused.
    """
    file = tmp_path / "sink.db"
    before, after = sink(file), sink(file)
    assert all(before.store(colour(offset, b"%d" % offset), 7) for offset in range(3))
    assert all(after.store(colour(offset, b"%d" % offset), 9) for offset in range(1, 4))
    assert rows(file) == [(0, b"0"), (1, b"1"), (2, b"2"), (3, b"3")]
    assert not before.store(colour(3, b"late"), 7)
    assert not before.store(colour(4, b"late"), 7)
    assert before.store(Record("colours", 1, 0, None, b"another partition's"), 7)
    assert after.store(colour(4, b"4"), 9)


class Site(ThreadingHTTPServer):
    """A web server on loopback that answers every request; each port is another host for the crawlers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name in the base class
        """Log nothing."""


def fetched_by(crawler: Running, since: int = 0) -> set[str]:
    """Return the URLs that a crawler has fetched, after its first ``since`` lines."""
    return {line.split()[1] for line in crawler.lines[since:] if line.startswith("fetched ")}


async def test_the_crawlers_share_the_hosts(cluster_39: Cluster, unique: Unique, tmp_path: Path) -> None:
    """
    Two crawlers share three hosts by their capacities. A URL that is added is fetched, too. After kill -9 of one, the
    other fetches all.
    """
    file, group = tmp_path / "urls.txt", unique("crawlers")

    def write(urls: set[str]) -> None:
        # The crawlers read the file at any time: it is replaced as a whole.
        (tmp_path / "next.txt").write_text("\n".join(sorted(urls)))
        (tmp_path / "next.txt").replace(file)

    with ExitStack() as stack:
        sites = [stack.enter_context(Site()).url for _ in range(3)]
        pages = {f"{site}/{page}" for site in sites for page in ("a", "b")}
        write(pages)
        arguments = [str(EXAMPLES / "sharded_crawlers.py"), cluster_39.zk_hosts, group, str(file), "--interval", "0.05"]
        small = stack.enter_context(Running(arguments))
        await eventually(lambda: fetched_by(small) == pages, "one crawler fetches all pages")
        large = stack.enter_context(Running([*arguments, "--capacity", "2"]))
        await eventually(lambda: "assigned 4" in large.lines, "the large crawler has two hosts")
        await eventually(lambda: small.lines.count("assigned 2") == 1, "the small one has the third")
        since = small.lines.index("assigned 2")
        await eventually(lambda: fetched_by(small, since) | fetched_by(large) == pages, "all pages are fetched")
        assert not fetched_by(small, since) & fetched_by(large)
        added = f"{sites[0]}/c"
        write(pages | {added})
        await eventually(lambda: added in fetched_by(small) | fetched_by(large), "the added page is fetched")
        small.end(signal.SIGKILL)
        since = len(large.lines)
        await eventually(lambda: fetched_by(large, since) == pages | {added}, "the other crawler fetches all pages")
        assert large.end(signal.SIGINT) == 0
        assert large.errors == ["left the group"]
