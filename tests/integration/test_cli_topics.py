"""``kiel-groups topics`` on real servers: its changes, its output, and its errors."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kiel_groups import Producer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import BrokerError, ConflictError, CoordinationError
from kiel_groups.ops import zookeeper_client
from kiel_groups.ops.actions import topics as actions
from kiel_groups.ops.actions.topic_config import apply_in_zookeeper, plan_in_zookeeper
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.ops.zookeeper_reader import list_topics
from kiel_groups.wire.error_codes import MESSAGE_SIZE_TOO_LARGE
from tests.helpers.cluster_data import produce, zookeeper
from tests.helpers.commands import kiel_groups_here
from tests.helpers.waiting import eventually, eventually_blocking

pytestmark = pytest.mark.integration

Unique = Callable[[str], str]


def topics(cluster: Cluster, *words: str) -> tuple[int, str, str]:
    """Run ``kiel-groups topics`` on a cluster, and return its status, output and errors."""
    done = kiel_groups_here("topics", *words, f"--zookeeper={cluster.zk_hosts}")
    return done.returncode, done.stdout, done.stderr


def described(cluster: Cluster, topic: str) -> dict[str, Any]:
    """Return the output of ``describe --json`` for one topic, when the brokers know the leaders that ZooKeeper has."""

    def printed() -> str | None:
        status, out, err = topics(cluster, "describe", topic, "--json")
        if "LEADER_NOT_AVAILABLE" in err:
            return None
        assert (status, err) == (0, "")
        return out

    (found,) = json.loads(eventually_blocking(printed, "the brokers know the leaders") or "")
    assert isinstance(found, dict)
    return found


async def test_a_topic_is_created_grown_described_and_deleted(release_cluster: Cluster, unique: Unique) -> None:
    """The commands work on every release, except that 0.8.0 cannot delete topics."""
    topic = unique("topic")
    created = topics(release_cluster, "create", topic, "--partitions=2")
    assert created == (0, "", f"info: topic {topic} created with 2 partitions\n")
    await produce(release_cluster, topic, 10)
    status, out, err = topics(release_cluster, "grow", topic, "--partitions=3", "--yes")
    assert (status, err) == (0, f"info: topic {topic} has 3 partitions now\n")
    assert out.startswith(f"{topic}: 2 partitions now, 3 after the change\nKeys may map to other partitions then")
    found = described(release_cluster, topic)
    partitions = found.pop("partitions")
    assert found == {"topic": topic, "config": {}, "being_deleted": False}
    assert [(each["partition"], each["leader"], each["replicas"], each["isr"]) for each in partitions] == [
        (number, 0, [0], [0]) for number in range(3)
    ]
    assert [each["log_start"] for each in partitions] == [0, 0, 0]
    assert sum(each["log_end"] for each in partitions) == 10
    listed = json.loads(topics(release_cluster, "list", "--json")[1])
    assert {"topic": topic, "partitions": 3, "replication": 1} in listed
    if release_cluster.kafka[0].version != "0.8.0":
        assert topics(release_cluster, "delete", topic, "--yes") == (0, "", f"info: topic {topic} deleted\n")
        other = unique("quiet")
        assert topics(release_cluster, "create", other, "-q") == (0, "", "")
        status, out, err = topics(release_cluster, "create", other, f"{other}-2", "-q", "--if-missing", "--json")
        assert (status, err) == (0, "")
        assert json.loads(out) == [
            {"topic": other, "partitions": 1, "replication": 1, "created": False},
            {"topic": f"{other}-2", "partitions": 1, "replication": 1, "created": True},
        ]
        assert topics(release_cluster, "grow", other, "-q", "--partitions=2", "--yes") == (0, "", "")
        assert topics(release_cluster, "delete", other, "-q", "--yes") == (0, "", "")
        with zookeeper(release_cluster) as client:
            assert topic not in list_topics(client)


async def refuses(producer: Producer, topic: str) -> bool:
    """Return whether the broker refuses a record of 200 bytes as too large."""
    try:
        await producer.produce(topic, b"x" * 200)
    except BrokerError as error:
        return error.code == MESSAGE_SIZE_TOO_LARGE.number
    return False


async def test_settings_of_a_topic_are_shown_and_changed(release_cluster: Cluster, unique: Unique) -> None:
    """The brokers follow a change at once, except those of 0.8.0, which have no settings of topics."""
    topic = unique("topic")
    await release_cluster.create_topic(topic, 1)
    limit = ("config", topic, "max.message.bytes=100")
    if release_cluster.kafka[0].version == "0.8.0":
        status, out, err = topics(release_cluster, *limit, "--yes")
        assert (status, out) == (2, "")
        assert "these brokers do not follow settings of topics, as those of Kafka 0.8.0" in err
        return
    dry = json.loads(topics(release_cluster, *limit, "--dry-run", "--json")[1])
    assert dry == {"dry_run": True, "topic": topic, "before": {}, "after": {"max.message.bytes": "100"}}
    assert topics(release_cluster, *limit)[0] == 2, "there is no terminal to ask at"
    assert described(release_cluster, topic)["config"] == {}
    status, out, err = topics(release_cluster, *limit, "retention.ms=3600000", "--yes")
    assert (status, err) == (0, f"info: the settings of topic {topic} are changed\n")
    async with Producer(release_cluster.brokers) as producer:
        await eventually(lambda: refuses(producer, topic), "the broker follows the limit")
        status, out, err = topics(release_cluster, "config", topic, "--unset=max.message.bytes", "--yes")
        assert (status, out.splitlines()[-2].split()) == (0, ["max.message.bytes", "100", "-"])
        shown = topics(release_cluster, "config", topic)[1].splitlines()
        assert ["retention.ms", "3600000", "topic"] in [line.split() for line in shown]

        async def accepts() -> bool:
            return not await refuses(producer, topic)

        await eventually(accepts, "the broker follows the removal of the limit")


async def test_a_change_of_settings_is_refused_if_another_one_was_faster(cluster_39: Cluster, unique: Unique) -> None:
    """Nothing is overwritten, and the brokers are not notified."""
    topic = unique("topic")
    assert topics(cluster_39, "create", topic, "--config=retention.ms")[0] == 2
    assert "did you mean 'retention.ms'?" in topics(cluster_39, "create", topic, "--config=retention.m=7000")[2]
    assert topics(cluster_39, "create", topic, "-q", "--config=flush.ms=7000") == (0, "", "")
    assert described(cluster_39, topic)["config"] == {"flush.ms": "7000"}
    with zookeeper(cluster_39) as client:
        change = plan_in_zookeeper(client, topic, {"retention.ms": "1000"}, ())
        client.set(f"/config/topics/{topic}", b'{"version":1,"config":{"flush.ms":"5"}}')
        notified = client.get_children("/config/changes")
        with pytest.raises(ConflictError, match="another client has changed its settings meanwhile"):
            apply_in_zookeeper(client, change)
        assert client.get_children("/config/changes") == notified
    assert described(cluster_39, topic)["config"] == {"flush.ms": "5"}


def test_brokers_are_listed(cluster_39: Cluster) -> None:
    """Each has its address, and the controller is named."""
    (broker,) = json.loads(topics(cluster_39, "brokers", "--json")[1])
    assert broker == {"broker": 0, "address": cluster_39.brokers[0], "controller": True}
    assert topics(cluster_39, "brokers")[1].splitlines()[-1].split() == ["0", cluster_39.brokers[0], "yes"]


async def test_tables_fit_the_terminal_and_show_problems_first(cluster_39: Cluster, unique: Unique) -> None:
    """A partition without a leader is reported above the table, and its offsets are shown as unknown, not as zero."""
    topic = unique("t")[:40]
    await cluster_39.create_topic(topic, 2)
    await produce(cluster_39, topic, 5)
    with zookeeper(cluster_39) as client:
        state = f"/brokers/topics/{topic}/partitions/1/state"
        leaderless = json.loads(client.get(state)[0]) | {"leader": -1, "isr": []}
        client.set(state, json.dumps(leaderless).encode())
        client.set(f"/config/topics/{topic}", b'{"version":1,"config":{"retention.ms":"3600000"}}')
    status, out, err = topics(cluster_39, "describe", topic)
    lines = out.splitlines()
    assert (status, err) == (0, "")
    assert lines[:3] == [
        f"{topic}: 2 partitions, replication 1, retention.ms=3600000",
        "  without a leader: 1",
        "  with replicas not in sync: 1",
    ]
    assert lines[-1].split() == ["1", "none", "0", "?", "?", "?"]
    assert max(map(len, lines[3:])) <= 80
    listed = topics(cluster_39, "list")[1].splitlines()
    assert [topic, "2", "1"] in [line.split() for line in listed]


async def test_a_leader_that_is_not_registered_is_dead(cluster_39: Cluster, unique: Unique) -> None:
    """
    If the last leader of a partition, which ZooKeeper keeps, is not registered, it is shown as dead above the table, in
    its row, and in JSON.
    """
    topic = unique("t")
    await cluster_39.create_topic(topic, 2)
    with zookeeper(cluster_39) as client:
        state = f"/brokers/topics/{topic}/partitions/1/state"
        client.set(state, json.dumps(json.loads(client.get(state)[0]) | {"leader": 99}).encode())
    lines = topics(cluster_39, "describe", topic)[1].splitlines()
    assert lines[1] == "  led by a dead broker (not registered): 1"
    assert lines[-1].split()[:3] == ["1", "99", "dead"]
    assert [each["leader_is_dead"] for each in described(cluster_39, topic)["partitions"]] == [False, True]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["describe", "{topic}s"], 2, "topic '{topic}s' does not exist in ZooKeeper at {zookeeper} (did you mean"),
        (
            ["describe", "{topic}s"],
            2,
            "'kiel-groups topics list --zookeeper {zookeeper}' shows the existing topics, 'topics create' creates one",
        ),
        (["create", "{topic}"], 2, "topic '{topic}' exists already; delete it first, or choose another name"),
        (["create", "a topic"], 2, "topic: 'a topic' is not a legal name; Kafka 0.8 allows letters, digits"),
        (["create", "new", "--replication=3"], 2, "replication: 3 given; expected at most 1, the number of live"),
        (["create", "new", "--partitions=0"], 2, "'--partitions': 0 is not in the range x>=1."),
        (
            ["grow", "{topic}", "--partitions=1"],
            2,
            "topic '{topic}' has 1 partition already; --partitions 1 given, expected more",
        ),
        (["create", "x" * 250, "--partitions=20000"], 2, "with 20,000 partitions it may have 249"),
        (["create", "{topic}", "{topic}s", "--partitions=1"], 2, "topic '{topic}' exists already; delete it first"),
        (["grow", "{topic}s", "--partitions=2"], 2, "topic '{topic}s' does not exist in ZooKeeper at {zookeeper} (did"),
        (["config", "{topic}s"], 2, "topic '{topic}s' does not exist in ZooKeeper at {zookeeper} (did you mean"),
        (["config", "{topic}", "retention.ms"], 2, "'retention.ms' given; expected NAME=VALUE"),
        (["config", "{topic}", "flush.ms=1", "flush.ms=2"], 2, "'flush.ms' is given twice."),
        (["config", "{topic}", "retention=1"], 2, "is no setting of topics of Kafka 0.8; did you mean 'retention.ms'?"),
        (["config", "{topic}", "retention.ms=1h"], 2, "retention.ms: '1h' given; expected a number from 0 to"),
        (
            ["config", "{topic}", "--unset=flush.ms"],
            2,
            "'{topic}' has no setting flush.ms of its own; it has none",
        ),
        (["delete", "{topic}"], 2, "there is no terminal to confirm at; give --yes."),
        (["remove", "{topic}"], 2, "No such command 'remove'."),
        (["list", "{topic}"], 2, "Got unexpected extra argument ({topic})"),
        (["describe"], 2, "Missing argument 'TOPIC...'."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
async def test_mistakes_give_one_line(
    cluster_39: Cluster, unique: Unique, words: list[str], status: int, message: str
) -> None:
    """The line says what is wrong, and may suggest a remedy. Nothing is changed."""
    topic = unique("t")
    await cluster_39.create_topic(topic, 1)
    done, out, err = topics(cluster_39, *(word.format(topic=topic) for word in words))
    assert (done, out, err.count("\n")) == (status, "", 1)
    assert message.format(topic=topic, zookeeper=cluster_39.zk_hosts) in err


def test_missing_servers_give_one_line(cluster_39: Cluster) -> None:
    """
    The cases are: no server, the port of a broker, a missing chroot, a name without an address, and no option at all.
    """
    broker = cluster_39.brokers[0]
    for given, status, message in (
        (
            ["--zookeeper=127.0.0.1:1"],
            1,
            "no ZooKeeper answered at 127.0.0.1:1 within 5 s; is it running, and the port",
        ),
        (
            [f"--zookeeper={broker}"],
            1,
            f"no ZooKeeper answered at {broker} within 5 s; is it running, and the port right",
        ),
        ([f"--zookeeper={cluster_39.zk_hosts}/not"], 2, "the chroot /not does not exist in ZooKeeper"),
        (["--zookeeper=no.such.host.invalid"], 1, "the host of ZooKeeper has no address: no.such.host.invalid ("),
        ([], 2, "Missing option '--zookeeper' (env var: 'KIEL_GROUPS_ZOOKEEPER')."),
    ):
        done = kiel_groups_here("topics", "list", *given)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1)
        assert message in done.stderr


def test_a_topic_is_described_without_brokers(start_zookeeper: Callable[..., Any], unique: Unique) -> None:
    """Without brokers, the output has the data of ZooKeeper, and unknown values where only brokers have the data."""
    server = start_zookeeper()
    with zookeeper_client.zookeeper(server.hosts) as client:
        client.create("/brokers/topics/t", b'{"version":1,"partitions":{"0":[0]}}', makepath=True)
        client.create("/brokers/topics/t/partitions/0/state", b'{"leader":0,"isr":[0]}', makepath=True)
    done = kiel_groups_here("topics", "describe", "t", f"--zookeeper={server.hosts}")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].split() == ["0", "0", "dead", "0", "0", "?", "?", "?"]
    assert done.stderr == (
        "warning: where the logs start and end is not fully known: no broker is registered in ZooKeeper\n"
    )


def test_if_missing_accepts_an_existing_topic(cluster_39: Cluster, unique: Unique) -> None:
    """With --if-missing a script can run the command again. Without the option, an existing topic is an error."""
    topic = unique("topic")
    again = ("create", topic, "--partitions=2", "--if-missing", "--wait=30")
    assert topics(cluster_39, *again) == (0, "", f"info: topic {topic} created with 2 partitions\n")
    assert topics(cluster_39, *again) == (0, "", f"info: topic {topic} exists already\n")
    assert topics(cluster_39, "create", topic)[0] == 2
    assert topics(cluster_39, "create", topic, "--partitions=9", "--if-missing") == (
        0,
        "",
        f"warning: topic {topic} exists already, with 2 partitions and not 9;"
        f" 'kiel-groups topics grow {topic} --partitions 9 --zookeeper {cluster_39.zk_hosts}' adds the rest\n",
    )


async def test_all_names_are_checked_before_any_change(cluster_39: Cluster, unique: Unique) -> None:
    """If one name is invalid, nothing is created or deleted."""
    first, second, new = unique("first"), unique("second"), unique("new")
    for name in (first, second):
        await cluster_39.create_topic(name, 1)
    status, out, err = topics(cluster_39, "delete", first, "nosuch", second, "--yes")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "topic 'nosuch' does not exist" in err
    for words in (["create", new, first, second], ["create", new, "a topic"], ["create", new, "x" * 254]):
        status, out, err = topics(cluster_39, *words)
        assert (status, out, err.count("\n")) == (2, "", 1), err
    with zookeeper(cluster_39) as client:
        assert {first, second} <= set(list_topics(client))
        assert new not in list_topics(client)
    status, out, err = topics(cluster_39, "delete", first, "--dry-run", "--json")
    assert (status, json.loads(out), err) == (0, {"dry_run": True, "topics": [{"topic": first, "partitions": 1}]}, "")
    done = topics(cluster_39, "delete", first, first, second, "--yes")
    assert done == (0, "", f"info: topic {first} deleted\ninfo: topic {second} deleted\n")


async def test_the_wait_option_waits_for_brokers(cluster_39: Cluster, unique: Unique) -> None:
    """
    The command waits until enough brokers are registered. If the given time ends first, the error says what is missing.
    """
    chroot = f"/{unique('late')}"
    hosts = f"{cluster_39.zk_hosts}{chroot}"
    zookeeper_client.create_chroot(hosts)
    done = kiel_groups_here("topics", "create", "t", "--wait=0.1", f"--zookeeper={hosts}")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "no broker is registered" in done.stderr
    waiting = asyncio.create_task(asyncio.to_thread(zookeeper_client.await_brokers, hosts, 2, timeout_s=60))
    with zookeeper(cluster_39) as client:
        client.create(f"{chroot}/brokers/ids/1", makepath=True)
        assert not waiting.done()
        client.create(f"{chroot}/brokers/ids/2")
        async with asyncio.timeout(30):
            await waiting


async def test_a_deletion_that_is_refused_does_not_come_later(
    start_cluster: Callable[..., Cluster], unique: Unique
) -> None:
    """
    Brokers with ``delete.topic.enable=false`` leave the request where it is, and delete the topic once the setting
    changes. So it is withdrawn after a while, and after Ctrl-C. An earlier request of others is named instead, and one
    that a controller has begun to execute stays.
    """
    cluster = start_cluster(kafka="0.8.2.2", broker_overrides={"delete.topic.enable": "false"})
    topic = unique("topic")
    await cluster.create_topic(topic, 2)
    mark = f"/admin/delete_topics/{topic}"

    def delete() -> None:
        ZooKeeperTopics(cluster.zk_hosts).delete(topic, timeout_s=0.2)

    with zookeeper(cluster) as client:
        with pytest.raises(CoordinationError, match=r"delete.topic.enable=true .* The request is withdrawn$"):
            delete()
        assert client.exists(mark) is None
        with pytest.MonkeyPatch.context() as patch:

            def interrupt(seconds: float) -> None:
                raise KeyboardInterrupt

            patch.setattr(actions, "time", SimpleNamespace(monotonic=time.monotonic, sleep=interrupt))
            with pytest.raises(KeyboardInterrupt):
                delete()
        assert client.exists(mark) is None
        client.create(mark, b"")
        with pytest.raises(CoordinationError, match=f"{mark} still asks for it: delete that znode"):
            delete()
        assert client.exists(mark) is not None
        client.delete(mark)
        state = f"/brokers/topics/{topic}/partitions/1/state"
        client.set(state, json.dumps(json.loads(client.get(state)[0]) | {"leader": -1}).encode())
        with pytest.raises(CoordinationError, match=f"{mark} still asks for it"):
            delete()
        assert client.exists(mark) is not None


async def test_a_broker_without_a_usable_address_fails_no_command_about_others(
    cluster_39: Cluster, unique: Callable[[str], str]
) -> None:
    """Registrations without a host, such as those of brokers with encrypted listeners only, and garbage are ignored."""
    topic, chroot = unique("topic"), unique("/chroot")
    await cluster_39.create_topic(topic, 1)
    described(cluster_39, topic)
    with zookeeper(cluster_39) as client:
        (broker,) = client.get_children("/brokers/ids")
        for path in (
            f"/brokers/ids/{broker}",
            f"/brokers/topics/{topic}",
            f"/brokers/topics/{topic}/partitions/0/state",
        ):
            client.create(chroot + path, client.get(path)[0], makepath=True)
        client.create(f"{chroot}/consumers/g/offsets/{topic}/0", b"0", makepath=True)
        odd = (b'{"version":1,"host":null,"port":-1}', b'{"host":"127.0.0.1","port":99999}', b"garbage", None)
        for number, data in enumerate(odd, 70):
            client.create(f"{chroot}/brokers/ids/{number}", data)
        client.create(f"{chroot}/brokers/ids/garbage", b"garbage")
    for words in (["topics", "describe", topic], ["lag", "g", "--check"], ["describe", "g"], ["groups", "--lag"]):
        done = await asyncio.to_thread(kiel_groups_here, *words, "--zookeeper", f"{cluster_39.zk_hosts}{chroot}\n")
        assert (done.returncode, done.stderr) == (0, ""), done
