"""The election driver creates an election znode with the right path, data and flags."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.group.znodes.transactions import Answer, Check, Create, Done, Operation
from kiel_groups.members.zookeeper.leader import Candidacy
from kiel_groups.zookeeper.tasks import TaskSet
from tests.helpers.contexts import session_context
from tests.helpers.waiting import run_ready_tasks

pytestmark = pytest.mark.unit

LAYOUT = GroupLayout("g")
ID = "g_box-1700000000123-10a"


class FakeSession:
    """A session that records transactions, and appends sequence number 12 to each sequential znode."""

    def __init__(self) -> None:
        self.transactions: list[list[Operation]] = []
        self.names: list[str] = []

    async def transact(self, operations: Iterable[Operation]) -> Answer:
        listed = list(operations)
        self.transactions.append(listed)
        paths = tuple(f"{each.path}0000000012" if isinstance(each, Create) else None for each in listed)
        self.names += [path.rpartition("/")[2] for path in paths if path is not None]
        return Done((None,) * len(listed), paths)

    async def children(self, path: str) -> list[str]:
        assert path == LAYOUT.election
        return self.names


async def test_the_election_znode_has_its_golden_bytes() -> None:
    """
    The election znode is ephemeral and sequential, has the member id as its data, and is created only if the member
    znode exists.
    """
    session = FakeSession()
    planner = cast(Any, SimpleNamespace(begin=lambda: None, forget=lambda: None, stop=lambda: None))
    errors: list[BaseException] = []
    context = session_context(session, member_id=ID, tasks=TaskSet(errors.append))
    candidacy = Candidacy(context, lambda _: planner, LAYOUT.member(ID))
    candidacy.enter()
    await run_ready_tasks()
    ((check, create),) = session.transactions
    assert check == Check("/kiel-groups/g/members/g_box-1700000000123-10a")
    assert isinstance(create, Create)
    prefix, infix, rest = create.path.partition("-n_")
    assert (prefix.rpartition("/")[0], infix, rest) == ("/kiel-groups/g/election", "-n_", "")
    assert (create.data, create.ephemeral, create.sequence) == (b"g_box-1700000000123-10a", True, True)
    assert errors == []
    state = candidacy._leader_driver._state
    assert (candidacy.leads, state.candidate, state.causes) == (True, f"{create.path}0000000012", ("first plan",))
    candidacy.end()
