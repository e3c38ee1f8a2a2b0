"""Registrations of members: their answers are lost, or their parent znodes are deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from kiel_groups.group.znodes.transactions import Operation
from kiel_groups.members.zookeeper.registration import SubscriptionRegistration
from tests.sim.world import at_rest

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("is_new", [True, False])
def test_a_registration_whose_answer_is_lost_is_recognized(monkeypatch: pytest.MonkeyPatch, is_new: bool) -> None:
    """
    If the answer to a registration is lost, the repeated registration is refused because the member's own znode exists.
    That refusal is no error.

    The member reconnects to a server that lags, so it cannot find its znode by reading.
    """
    with at_rest(members=2, topics=(4,)) as world:
        consumer = world.join(world.topics) if is_new else world.consumers[0]
        operations, registered = SubscriptionRegistration._creation, []

        def losing_its_answer(registration: SubscriptionRegistration, topics: Collection[str]) -> list[Operation]:
            if world.history.sessions.consumers.get(registration._session.id) is consumer and not registered:
                registered.append(consumer)
                consumer.process.lose("reply")
                behind = next(
                    server
                    for server in world.ensemble.servers
                    if server not in (world.ensemble.leader, consumer.process.server)
                )
                behind.lag_s = 2.0
                # Applies to the next connection; the current one remains.
                world.timeline.after(0.0, setattr, consumer.process, "only", behind)
            return operations(registration, topics)

        monkeypatch.setattr(SubscriptionRegistration, "_creation", losing_its_answer)
        if not is_new:
            world.operator.delete(world.layout.member(str(consumer.member.member_id)))
        world.run_for(10.0)
        assert registered
        consumer.process.only = None
        world.settle(20.0)
        assert len(consumer.opened) > 0
        assert consumer.metrics.total("sessions_opened") == 2 - is_new


@pytest.mark.parametrize("folder", ["members", "ids"])
def test_folders_that_are_deleted_while_a_member_joins_are_created_again(
    monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """
    A member creates a parent znode again that an operator deletes between the member's check of the parents and its
    registration.
    """
    with at_rest(members=1, topics=(2,)) as world:
        consumer = world.consumers[0]
        path = {"members": world.layout.members, "ids": world.layout.ids}[folder]
        deleted = []

        async def deleting(registration: SubscriptionRegistration) -> None:
            if not deleted:
                deleted.append(path)
                for name in world.ensemble.tree.children(path):
                    world.operator.delete_async(f"{path}/{name}")
                world.operator.delete_async(path)
                await asyncio.sleep(1.0)
            await register(registration)

        register = SubscriptionRegistration.register
        monkeypatch.setattr(SubscriptionRegistration, "register", deleting)
        world.operator.delete(world.layout.member(str(consumer.member.member_id)))
        world.run_for(10.0)
        assert deleted
        assert consumer.failure is None
        assert consumer.metrics.total("group_folders_restored") == 1
        world.settle(20.0)
        assert len(consumer.opened) == 2


def test_a_deleted_consumer_id_is_restored() -> None:
    """A member creates its consumer id again at its next regular check, with the topics that it has registered."""
    with at_rest(members=2, topics=(4,), reconcile_interval_ms=3_000) as world:
        consumer = world.consumers[0]
        path = world.layout.consumer_id(str(consumer.member.member_id))
        before = world.ensemble.tree.znodes[path]
        world.operator.delete(path)
        assert path not in world.ensemble.tree.znodes
        # The interval is longer by up to a third.
        world.run_for(4.5)
        after = world.ensemble.tree.znodes[path]
        assert (after.data, after.owner) == (before.data, consumer.process.sessions[-1])
        assert consumer.metrics.total("sessions_lost") == 0


def test_a_missing_topic_among_many_is_reported() -> None:
    """Beyond twenty topics, a member reads the names of all topics at once, and warns of those that are missing."""
    with at_rest(members=1, topics=(1,) * 21) as world:
        joined = world.join([*world.topics, "absent"])
        world.run_for(5.0)
        assert joined.metrics.total("subscribed_topics_missing") == 1
        assert world.consumers[0].metrics.total("subscribed_topics_missing") == 0
