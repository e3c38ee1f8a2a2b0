"""How a session tries a right that was missing."""

from __future__ import annotations

import pytest

from kiel_groups.errors import AuthorizationError
from kiel_groups.group.znodes.transactions import Create, Done
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.session import Session
from tests.sim.session_bench import SessionBench

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("right", ["create", "delete", "read", "write"])
def test_a_right_is_tried_without_a_write(right: str) -> None:
    """The try fails with the same right and znode while the right is missing. It changes nothing in either case."""
    bench = SessionBench()
    refused: list[tuple[str, str]] = []

    async def work(session: Session, writer: FencedWriter) -> None:
        assert isinstance(await session.transact([Create("/a")]), Done)
        error = AuthorizationError("is refused", path="/a", right=right)
        await session.check_right(error)
        bench.ensemble.tree.denied.add((right, "/a"))
        with pytest.raises(AuthorizationError) as raised:
            await session.check_right(error)
        refused.append((raised.value.right, raised.value.path))

    bench.run(work)
    assert refused == [(right, "/a")]
    changes = [[change.path for change in entry.changes] for entry in bench.ensemble.log if entry.pending is not None]
    assert changes == [["/member"], ["/a"], [], []]
