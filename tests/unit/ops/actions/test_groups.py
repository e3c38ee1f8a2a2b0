"""Groups are deleted as a whole, unless a member of any client is alive, or joins meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.protocol.serialization import Create, Delete, Transaction

from kiel_groups.errors import ConfigError, ConflictError, CoordinationError
from kiel_groups.group.znodes.contents import Snapshot, Znode
from kiel_groups.group.znodes.group_settings import encode_weights
from kiel_groups.group.znodes.round_contents import RoundSettings
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.groups import delete_znodes
from kiel_groups.ops.views import deletion
from kiel_groups.ops.views.deletion import GroupDeletion, deletion_of_answers, deletion_of_znodes, deletion_transactions
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.group_requests import DescribedGroup, DescribedMember
from tests.fakes.znode_tree import Tree
from tests.helpers.group_snapshots import HEALTHY, PLANNED_MS, config

pytestmark = pytest.mark.unit

EPHEMERAL = 1
JAVA = "g_java-1-abcdef01"

#: A group that all its members have left.
LEFT: Snapshot = {
    path: znode
    for path, znode in HEALTHY.items()
    if not path.startswith(("/kiel-groups/g/members/", "/kiel-groups/g/election/", "/consumers/g/ids/"))
    and not path.startswith("/consumers/g/owners/t/")
}

OFFSETS = {TopicPartition("t", number): 10 for number in range(3)}


def tree_of(znodes: Snapshot) -> Tree:
    """Return a tree with the znodes and their parents."""
    tree = Tree()
    for path in sorted(znodes):
        parts = path.split("/")
        for end in range(2, len(parts) + 1):
            if (parent := "/".join(parts[:end])) not in tree.znodes:
                tree.perform(Create(parent, znodes.get(parent, Znode()).data, [], 0), 1, 1, 0)
    return tree


def znodes_of(tree: Tree) -> dict[str, Znode]:
    return {path: Znode(each.data, each.owner, version=each.version) for path, each in tree.znodes.items()}


def client_of(tree: Tree, between: Any = lambda number: None) -> Any:
    """Return a client that sends transactions to the tree; ``between`` is called with the number of those before."""
    number = iter(range(99))

    def transaction() -> SimpleNamespace:
        operations: list[Any] = []

        def commit() -> Any:
            between(next(number))
            return tree.perform(Transaction(operations), 1, 2, 0)[0]

        return SimpleNamespace(
            create=lambda path, data, *_, **__: operations.append(Create(path, data, [], 0)),
            delete=lambda path, version: operations.append(Delete(path, version)),
            commit=commit,
        )

    return SimpleNamespace(transaction=transaction)


def plan_of(tree: Tree) -> GroupDeletion:
    return deletion_of_znodes("g", znodes_of(tree))


def join(tree: Tree, member: str = "g_host-1700000000003-cccc") -> None:
    """Register a member of this package, which creates missing folders."""
    for folder in ("/kiel-groups/g", "/kiel-groups/g/members", "/consumers/g", "/consumers/g/ids"):
        if folder not in tree.znodes:
            tree.perform(Create(folder, b"", [], 0), 3, 3, 0)
    for folder in ("/kiel-groups/g/members", "/consumers/g/ids"):
        tree.perform(Create(f"{folder}/{member}", b"", [], EPHEMERAL), 3, 3, 0)


def test_a_group_is_deleted_with_all_its_znodes() -> None:
    """Those of this package, of Kafka and of kiel; other groups stay, and so do topics. A file gets the rest."""
    others = {"/consumers/gg/offsets/t/0": Znode(b"1"), "/kiel-groups/gg/config": Znode()}
    tree = tree_of({**LEFT, **others, "/kiel/groups/g/members": Znode(), "/kiel-groups/g/unknown/x": Znode()})
    planned = plan_of(tree)
    assert planned.offsets == OFFSETS
    assert planned.znodes == {"config": LEFT["/kiel-groups/g/config"].data.decode()}
    assert planned.losses == ("the offsets of 3 partitions of t", "its settings")
    delete_znodes(client_of(tree), planned)
    assert [path for path in tree.znodes if "/g" in f"{path}/".replace("/gg/", "").replace("/groups", "")] == []
    assert {*others, "/brokers/topics/t", "/kiel/groups"} <= tree.znodes.keys()


ALIVE: Mapping[str, tuple[Snapshot, str]] = {
    "a member of ours": (
        {"/kiel-groups/g/members/m": Znode(b"{}", 7), "/consumers/g/ids/m": Znode(b"", 7)},
        "member m",
    ),
    "an unreadable member": ({"/kiel-groups/g/members/m": Znode(b"\xff", 7)}, "member m"),
    "an allocator process": ({"/kiel-groups/g/election/f-n_0000000001": Znode(b"g_a", 7)}, "allocator process g_a"),
    "a Java consumer": ({f"/consumers/g/ids/{JAVA}": Znode(b"{}", 7)}, f"consumer of another client {JAVA}"),
    "a member of kiel": ({"/kiel/groups/g/members/w:1": Znode(b"", 7)}, "member of kiel w:1"),
    "a worker": ({"/kiel-groups/g/workers/w-1": Znode(b"", 7)}, "worker w-1"),
    "an owner": ({"/consumers/g/owners/t/0": Znode(b"g_dead-0", 7)}, "owner g_dead-0"),
}


@pytest.mark.parametrize(("znodes", "name"), ALIVE.values(), ids=ALIVE)
def test_a_live_group_is_refused(znodes: Snapshot, name: str) -> None:
    """The error names each process whose session is alive once, whichever client it has."""
    with pytest.raises(ConfigError, match="group g is alive, and is not deleted") as refused:
        deletion_of_znodes("g", {**LEFT, **znodes})
    assert f": {name}. Stop it first" in str(refused.value)
    assert ("start it without '--group g'" in str(refused.value)) == name.startswith("allocator process")


def test_many_live_members_are_counted() -> None:
    """The error is bounded, whatever the znodes are called, and however many there are."""
    znodes = {f"/consumers/g/ids/{number}{'x' * 500}": Znode(b"", 7) for number in range(9)}
    with pytest.raises(ConfigError, match=r"and 5 more\. Stop them first") as refused:
        deletion_of_znodes("g", znodes)
    assert len(str(refused.value)) < 1_500


def test_a_group_with_hidden_znodes_is_refused() -> None:
    """Members may be alive where an ACL denies reading."""
    with pytest.raises(CoordinationError, match="an ACL denies reading /kiel-groups/g/members"):
        deletion_of_znodes("g", {**LEFT, "/kiel-groups/g/members": Znode(closed=True)})


@pytest.mark.parametrize("most_bytes", [10_000, 800, 600])
def test_a_member_that_joins_meanwhile_stops_the_deletion(monkeypatch: pytest.MonkeyPatch, most_bytes: int) -> None:
    """Whenever it joins, its znodes stay, and of each partition either the offset is there or it is not."""
    monkeypatch.setattr(deletion, "LARGEST_BYTES", most_bytes)
    count = len(deletion_transactions("g", znodes_of(tree_of(LEFT))))
    assert (count > 1) == (most_bytes < 10_000)
    for joins_at in range(count):
        tree = tree_of(LEFT)
        planned = plan_of(tree)
        kept: dict[str, Any] = {}

        def between(number: int, tree: Tree = tree, kept: dict[str, Any] = kept, at: int = joins_at) -> None:
            if number == at:
                join(tree)
                kept |= tree.znodes

        with pytest.raises(ConflictError, match="group g has changed meanwhile, at /") as refused:
            delete_znodes(client_of(tree, between), planned)
        assert tree.znodes.keys() == kept.keys()
        assert ("nothing was deleted" in str(refused.value)) == (joins_at == 0)


def test_several_transactions_delete_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fits into a request of ZooKeeper."""
    monkeypatch.setattr(deletion, "LARGEST_BYTES", 600)
    tree = tree_of(LEFT)
    delete_znodes(client_of(tree), plan_of(tree))
    assert [path for path in tree.znodes if path.startswith(("/kiel-groups/", "/consumers/"))] == []


@pytest.mark.parametrize("path", ["/consumers/g/offsets/t/1", "/kiel-groups/g/config"])
def test_a_change_meanwhile_stops_the_deletion(path: str) -> None:
    """For example, a Spark query that is no member commits its offsets."""
    tree = tree_of(LEFT)
    planned = plan_of(tree)
    before = set(tree.znodes)
    tree.znodes[path] = tree.znodes[path]._replace(version=1)
    with pytest.raises(ConflictError, match=rf"at {path} \(BadVersionError\); nothing was deleted"):
        delete_znodes(client_of(tree), planned)
    assert set(tree.znodes) == before


def lost(znodes: Snapshot, group: str = "g") -> GroupDeletion:
    parents = {path.rpartition("/")[0]: Znode() for path in znodes}
    return deletion_of_znodes(group, {**parents, **znodes})


def test_weights_are_lost_and_in_the_restore_file() -> None:
    """They are bytes, each of which is a character in the file."""
    weights = Znode(encode_weights({TopicPartition("t", 1): 2.0}))
    found = lost({**LEFT, "/kiel-groups/g/weights": weights})
    assert found.losses[-1] == "the weights of 1 partition"
    assert found.znodes["weights"].encode("latin-1") == weights.data


def test_offsets_in_kafka_stay() -> None:
    """They are not lost, and old ones in ZooKeeper do not get into a restore file."""
    found = lost({**LEFT, "/kiel-groups/g/config": config(store="broker-v1")})
    assert (found.offsets, found.losses) == ({}, ("its settings",))
    assert "its offsets are in Kafka (broker-v1) and stay there" in found.notes[0]


def test_the_group_of_a_spark_query_says_so() -> None:
    """Its name tells it; another group that no member has ever joined may be a query's, too."""
    of_spark = lost({"/consumers/kiel-spark-ab/offsets/t/0": Znode(b"5", modified_ms=PLANNED_MS)}, "kiel-spark-ab")
    assert of_spark.notes[0].startswith("a Spark query or an archive commits here how far it is")
    assert (of_spark.committed_ms, of_spark.znodes) == (PLANNED_MS, {})
    other = lost({"/consumers/g/offsets/t/0": Znode(b"5"), "/consumers/g/offsets/t/1": Znode(b"many")})
    assert other.notes[0].startswith("no member has ever joined: 'offsets copy'")
    assert other.losses == ("the offsets of 1 partition of t", "1 offset that is no number")


def test_the_group_of_workers_names_its_connectors() -> None:
    """Their configurations and the places of sources are lost, and in the restore file, without their statuses."""
    root = "/kiel-groups/g/connect"
    kept = {
        "config": RoundSettings("connect").encode(),
        "connect": b'{"offset":3,"version":1}',
        "connect/connectors/a%2Fb": b"{}",
        "connect/offsets/a%2Fb/1234": b'{"offset":"\xc3\xa4"}',
    }
    znodes = {f"/kiel-groups/g/{path}": Znode(data) for path, data in kept.items()}
    tree = tree_of({**znodes, f"{root}/status/a%2Fb/0": Znode(b"{}")})
    planned = plan_of(tree)
    found = planned
    assert (found.protocol_type, found.offsets) == ("connect", {})
    assert {path: data.encode("latin-1") for path, data in found.znodes.items() if data} == kept
    assert found.losses == (
        "its settings",
        "the configurations of 1 connector: a/b",
        "1 source offset, without which connectors of these names start from the beginning: a/b",
    )
    assert "the offsets of sinks are in groups of their own" in found.notes[-1]
    delete_znodes(client_of(tree), planned)
    assert [path for path in tree.znodes if path.startswith("/kiel-groups/")] == []


def test_a_coordinated_group_is_judged_by_its_coordinators_answer() -> None:
    """Its members are named; without any, its offsets are lost."""
    empty = DescribedGroup(NO_ERROR, "g", "Empty", "consumer", "", ())
    assert deletion_of_answers(empty, OFFSETS).losses == ("the offsets of 3 partitions of t",)
    assert "the connectors stay" in deletion_of_answers(empty._replace(protocol_type="connect"), {}).notes[0]
    alive = empty._replace(members=(DescribedMember("m-1", "kiel", "/127.0.0.1", b"", b""),))
    with pytest.raises(ConfigError, match=r"group g is alive, .*: member m-1 at 127\.0\.0\.1\. Stop it"):
        deletion_of_answers(alive, OFFSETS)
