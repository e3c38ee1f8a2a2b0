"""How a session tries a right that was missing, and when it does not."""

from __future__ import annotations

import pytest

from kiel_groups.errors import AuthorizationError
from kiel_groups.group.znodes.layout import ROOT
from kiel_groups.group.znodes.transactions import Create, Done
from kiel_groups.model import TopicPartition
from kiel_groups.zookeeper.fenced_writes import FencedWriter
from kiel_groups.zookeeper.session import Session
from tests.sim.session_bench import SessionBench
from tests.sim.world import at_rest

pytestmark = pytest.mark.sim


@pytest.mark.parametrize(
    ("right", "path"),
    [("create", "/a"), ("delete", "/a"), ("read", "/a"), ("write", "/a"), ("create", ROOT)],
)
def test_a_right_is_tried_without_a_write(right: str, path: str) -> None:
    """The try fails with the same right and znode while the right is missing. It changes nothing in either case."""
    bench = SessionBench()
    refused: list[tuple[str, str]] = []

    async def work(session: Session, writer: FencedWriter) -> None:
        assert isinstance(await session.transact([Create(path)]), Done)
        error = AuthorizationError("is refused", path=path, right=right)
        await session.check_right(error)
        bench.ensemble.tree.denied.add((right, path))
        with pytest.raises(AuthorizationError) as raised:
            await session.check_right(error)
        refused.append((raised.value.right, raised.value.path))

    bench.run(work)
    assert refused == [(right, path)]
    changes = [[change.path for change in entry.changes] for entry in bench.ensemble.log if entry.pending is not None]
    assert changes == [["/member"], [path], [], []]


def test_a_changed_subscription_does_not_wait_for_a_right_of_the_former_one() -> None:
    """The application leaves out the topic whose offset its member may not write, and consumes the other one."""
    with at_rest(members=1, topics=(1, 1)) as world:
        (consumer,) = world.consumers
        path = world.layout.offset(TopicPartition("t0", 0))
        world.ensemble.tree.denied.add(("write", path))
        session = consumer.member._member_session
        assert session is not None
        consumer.process.call(session.fail, AuthorizationError("is refused", path=path, right="write"))
        world.run_for(20.0)
        assert not consumer.gate_is_open
        consumer.subscribe(["t1"])
        world.timeline.run_until(lambda: consumer.opened.keys() == {TopicPartition("t1", 0)}, 20.0)
