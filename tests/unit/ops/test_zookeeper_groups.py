"""Repeated readings of a group share one session, and thousands of groups cost a few requests each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from kazoo.exceptions import NoNodeError

from kiel_groups.errors import CoordinationError, KielGroupsError, UnknownGroupError
from kiel_groups.group.znodes.contents import Znode
from kiel_groups.ops import zookeeper_groups
from kiel_groups.ops.loaded_groups import LoadedGroups
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.ops.zookeeper_groups import ZooKeeperGroups
from kiel_groups.ops.zookeeper_reader import list_groups, read_summaries
from tests.helpers.group_snapshots import HEALTHY

pytestmark = pytest.mark.unit

LOADED = LoadedGroups((view_group("g", {}),), brokers=1)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """
    Return the list of opened sessions. A reading returns ``LOADED`` while its session is ``connected``, and fails
    afterwards.
    """
    opened: list[SimpleNamespace] = []

    @contextmanager
    def zookeeper(hosts: str, *, timeout_s: float) -> Iterator[SimpleNamespace]:
        session = SimpleNamespace(connected=True, closed=False)
        opened.append(session)
        try:
            yield session
        finally:
            session.closed = True

    def load(client: SimpleNamespace, *args: object) -> LoadedGroups:
        if client.connected:
            return LOADED
        raise CoordinationError("connection lost")

    monkeypatch.setattr(zookeeper_groups, "zookeeper", zookeeper)
    monkeypatch.setattr(zookeeper_groups, "_load", load)
    return opened


def test_a_session_lasts_until_a_reading_fails(sessions: list[SimpleNamespace]) -> None:
    """
    Readings share one session until a reading fails. Then the session is closed, the error is yielded, and the next
    reading opens another session.
    """
    readings = ZooKeeperGroups("z:2181").follow("g")
    assert [next(readings) for _ in range(3)] == [LOADED] * 3
    assert len(sessions) == 1
    sessions[0].connected = False
    assert isinstance(next(readings), KielGroupsError)
    assert sessions[0].closed
    assert [next(readings) for _ in range(2)] == [LOADED] * 2
    assert [session.closed for session in sessions] == [True, False]
    readings.close()
    assert [session.closed for session in sessions] == [True, True]


def test_an_unknown_group_ends_the_readings(sessions: list[SimpleNamespace], monkeypatch: pytest.MonkeyPatch) -> None:
    """
    An unknown group ends the readings with an error. It was deleted, or its name is wrong, so a retry would not help.
    """

    def unknown(*args: object) -> LoadedGroups:
        raise UnknownGroupError("there is none")

    monkeypatch.setattr(zookeeper_groups, "_load", unknown)
    with pytest.raises(UnknownGroupError):
        next(ZooKeeperGroups("z:2181").follow("g"))
    assert [session.closed for session in sessions] == [True]


class CountingClient:
    """Answers reads from a tree of empty znodes, and counts them."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.reads = 0
        self._children: dict[str, list[str]] = {}
        for path in sorted({"/".join(path.split("/")[:end]) for path in paths for end in range(2, 9)}):
            self._children.setdefault(path, [])
            parent, _, name = path.rpartition("/")
            self._children.setdefault(parent, []).append(name)

    def get_async(self, path: str) -> SimpleNamespace:
        return self._answer(path, lambda children: (b"", self._stat(children)))

    def get_children_async(self, path: str) -> SimpleNamespace:
        return self._answer(path, lambda children: children)

    def _answer(self, path: str, answer: Callable[[list[str]], object]) -> SimpleNamespace:
        self.reads += 1

        def get() -> object:
            if path not in self._children:
                raise NoNodeError
            return answer(self._children[path])

        return SimpleNamespace(get=get)

    def _stat(self, children: list[str]) -> SimpleNamespace:
        return SimpleNamespace(
            ephemeralOwner=0, ctime=0, mtime=0, czxid=0, mzxid=0, version=0, numChildren=len(children)
        )


def test_an_old_group_of_kafkas_consumers_costs_few_reads() -> None:
    """
    A group that only Kafka's consumers have used costs one read, and with offsets those of its owners and offset
    znodes. Each group gets its own znodes only, so that the views of thousands of groups take linear time.
    """
    old = [f"console-consumer-{number}" for number in range(500)]
    paths = [f"/consumers/{group}/{folder}" for group in old for folder in ("ids", "owners", "offsets/t/0")]
    client = CountingClient([*paths, "/kiel-groups/g/members/m", "/kiel-groups/g/starts/u", "/kiel/groups/k/members/m"])
    groups = list_groups(client)
    assert groups == [*sorted(old), "g", "k"]
    client.reads = 0
    found = read_summaries(client, groups, offsets=False)
    assert client.reads <= len(old) + 20
    assert {path for group in old for path in found[group]} == {f"/consumers/{group}/ids" for group in old}
    assert [len(found[group]) for group in old] == [1] * len(old)
    assert found["k"].keys() == {"/kiel/groups/k/members", "/kiel/groups/k/members/m"}
    client.reads = 0
    found = read_summaries(client, groups, offsets=True)
    assert client.reads <= 7 * len(old) + 20
    assert f"/consumers/{old[7]}/offsets/t/0" in found[old[7]]
    assert {"/kiel-groups/g/members/m", "/kiel-groups/g/starts/u"} <= found["g"].keys()


def test_a_deleted_plan_does_not_come_back() -> None:
    """A read of the plan alone takes no znode from the earlier view that it has just found to be missing."""
    view = replace(view_group("g", HEALTHY), plan_znodes=HEALTHY)
    client = CountingClient(path for path in HEALTHY if "/allocation" not in path)
    newer = zookeeper_groups._read_plan(client, view)
    assert (newer.member_ids, newer.group_state) == (view.member_ids, None)
    assert not [path for path in newer.plan_znodes if "/allocation" in path]


@pytest.mark.parametrize(
    ("closed", "is_known"),
    [
        ("/consumers/g", False),
        ("/consumers/g/offsets", False),
        ("/consumers/g/offsets/t/0", False),
        ("/consumers/g/ids", True),
        ("/kiel-groups/g/weights", True),
    ],
)
def test_a_lag_whose_offsets_an_acl_hides_is_not_known(
    monkeypatch: pytest.MonkeyPatch, closed: str, is_known: bool
) -> None:
    """Otherwise ``lag --check`` would find that a group without readable offsets is not behind."""
    session = nullcontext(SimpleNamespace(connected=True, exists=lambda _: None))
    monkeypatch.setattr(zookeeper_groups, "zookeeper", lambda *_, **__: session)
    monkeypatch.setattr(zookeeper_groups, "check_group", lambda *_: None)
    monkeypatch.setattr(zookeeper_groups, "read_brokers", lambda _: {})
    monkeypatch.setattr(zookeeper_groups, "read_group", lambda *_: {closed: Znode(closed=True)})
    problem = ZooKeeperGroups("z:2181").load("g").lag_problem
    assert problem == ("" if is_known else f"an ACL denies reading {closed}")
