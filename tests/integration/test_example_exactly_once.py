"""The example that counts page views in PostgreSQL: each record once, whatever happens to the members."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from kiel_groups import TopicPartition
from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.layout import GroupLayout
from tests.helpers.closed_sessions import close_sessions_below
from tests.helpers.cluster_data import await_committed, produce, zookeeper
from tests.helpers.commands import REPOSITORY, Running
from tests.helpers.postgres import running_postgres
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

FOLDER = REPOSITORY / "examples" / "exactly_once_postgres"

Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with running_postgres(FOLDER / "schema.sql") as address:
        yield address


@contextmanager
def locked(postgres: str, table: str) -> Iterator[Callable[[], bool]]:
    """Lock a table against writes during the block. Yield a function that returns whether a transaction waits."""
    with psycopg.connect(postgres) as holder, psycopg.connect(postgres, autocommit=True) as watcher:
        holder.execute(f"LOCK TABLE {table} IN SHARE MODE")
        waiting = "SELECT FROM pg_locks WHERE NOT granted AND relation = %s::regclass"
        yield lambda: watcher.execute(waiting, [table]).fetchone() is not None


async def test_each_record_is_counted_once(cluster_39: Cluster, unique: Unique, postgres: str) -> None:
    """
    One member is killed, and the next one frozen until its session is over, both in the middle of a transaction. The
    third member counts every record. PostgreSQL refuses what the second one does when it continues.
    """
    topic = unique("topic")
    owner = GroupLayout("count-views").owner(TopicPartition(topic, 0))
    await cluster_39.create_topic(topic, 1)
    values = await produce(cluster_39, topic, 300)
    arguments = [str(FOLDER / "count_views.py"), topic, postgres]
    arguments += ["--brokers", cluster_39.brokers[0], "--zookeeper", cluster_39.zk_hosts]
    # PostgreSQL ends the transaction of the frozen member after the same time.
    arguments += ["--session-timeout-ms", "10000"]
    with (
        zookeeper(cluster_39) as client,
        psycopg.connect(postgres, autocommit=True) as table,
        Running(arguments) as killed,
        Running(arguments) as frozen,
    ):
        with locked(postgres, "page_views") as is_awaited:
            await eventually(is_awaited, "the first owner is in a transaction")
            killed, frozen = sorted((killed, frozen), key=lambda member: owns(member, topic), reverse=True)
            killed.end(signal.SIGKILL)
            close_sessions_below(client, owner)
        with locked(postgres, "page_views") as is_awaited:
            await eventually(lambda: owns(frozen, topic), "the second member has taken over")
            await eventually(is_awaited, "it is in a transaction")
            frozen.process.send_signal(signal.SIGSTOP)
            close_sessions_below(client, owner)
        with Running(arguments) as last:
            everything = [(value.decode(), 1) for value in sorted(values)]

            def counts() -> list[tuple[str, int]]:
                return table.execute('SELECT page, views FROM page_views ORDER BY page COLLATE "C"').fetchall()

            await eventually(lambda: counts() == everything, "the last member has counted each record once")
            frozen.process.send_signal(signal.SIGCONT)
            frozen.wait_for_error(f"WARNING count_views: {topic}:0: offsets 0 to ")
            more = await produce(cluster_39, topic, 50, first=300)
            everything = [(value.decode(), 1) for value in sorted(values + more)]
            await eventually(lambda: counts() == everything, "new records are counted once")
            await await_committed(cluster_39, "count-views", topic, 350)
            assert [member.end(signal.SIGTERM) for member in (frozen, last)] == [0, 0]
            assert [member.errors[-1] for member in (frozen, last)] == ["INFO count_views: left the group"] * 2
        position = "SELECT next_offset FROM positions WHERE topic = %s"
        assert table.execute(position, [topic]).fetchall() == [(350,)]


def owns(member: Running, topic: str) -> bool:
    """Return whether a member has claimed the partition in PostgreSQL."""
    return any(line.startswith(f"INFO count_views: {topic}:0: continues at ") for line in member.errors)


async def test_a_topic_that_was_created_again_is_not_skipped(
    cluster_39: Cluster, unique: Unique, postgres: str
) -> None:
    """If records come before the position in PostgreSQL, the program ends with an error, and counts none of them."""
    topic = unique("topic")
    await cluster_39.create_topic(topic, 1)
    await produce(cluster_39, topic, 3)
    with psycopg.connect(postgres) as table:
        table.execute("INSERT INTO positions VALUES (%s, 0, 1000, 0)", [topic])
    arguments = [str(FOLDER / "count_views.py"), topic, postgres]
    with Running([*arguments, "--brokers", cluster_39.brokers[0], "--zookeeper", cluster_39.zk_hosts]) as program:
        assert program.wait(30) == 1
        assert program.errors[-1].startswith(f"error: {topic}:0: offset 0 was delivered, but 1000 is next: ")


def test_missing_tables_are_an_error_before_the_group_is_joined(postgres: str) -> None:
    """The error names the table, and there is no traceback."""
    elsewhere = f"{postgres} options='-c search_path=nowhere'"
    with Running([str(FOLDER / "count_views.py"), "a-topic", elsewhere]) as program:
        assert program.wait(30) == 1
        assert program.errors[0].startswith('error: relation "page_views" does not exist')
