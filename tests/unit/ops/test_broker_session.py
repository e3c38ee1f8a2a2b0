"""A tool's connections to scripted brokers: which brokers it waits for, and which it cannot use."""

from __future__ import annotations

import asyncio

import pytest

from kiel_groups.embedded import Cluster
from kiel_groups.errors import BrokerError, NoBrokersError, ServerError
from kiel_groups.ops.actions.broker_topics import BrokerTopics
from kiel_groups.ops.broker_reader import BrokerSession, in_session
from tests.helpers.coordinator_answers import tool_script
from tests.helpers.fake_broker import METADATA, FakeBroker, Fault

pytestmark = pytest.mark.unit


async def test_a_session_waits_for_brokers_that_start() -> None:
    """Metadata lists a broker when it has registered."""
    async with (
        FakeBroker(node_id=1, script=tool_script({})) as broker,
        FakeBroker(node_id=2) as starting,
        BrokerSession(str(broker.address), timeout_s=5) as session,
    ):
        waiting = asyncio.ensure_future(session.await_brokers(2, 5))
        await broker.wait_for_requests(METADATA, 3)
        assert not waiting.done()
        broker.peers = [broker, starting]
        await waiting
        assert sorted(session.brokers) == [1, 2]


async def test_brokers_that_do_not_start_are_an_error_that_names_the_others() -> None:
    """The error names the brokers that are alive."""
    async with (
        FakeBroker(node_id=1, script=tool_script({})) as broker,
        BrokerSession(str(broker.address), timeout_s=5) as session,
    ):
        with pytest.raises(BrokerError) as raised:
            await session.await_brokers(2, 0)
    place = f"at brokers {broker.address} after 0 s, expected 2; alive: broker 1 at {broker.address}"
    assert str(raised.value) == f"1 broker is alive {place}"


async def test_a_stuck_broker_is_replaced_by_another_of_the_list() -> None:
    """One broker that answers is enough to enter a session; the names of topics need no event loop."""
    async with FakeBroker({"t": 1}, 1, tool_script({})) as broker, FakeBroker(node_id=2) as stuck:
        stuck.script = lambda request: Fault.SILENT
        hosts = f"{stuck.address},{broker.address}"
        assert await asyncio.to_thread(BrokerTopics(hosts, timeout_s=5).names) == ["t"]


async def test_a_cluster_without_an_answer_is_an_error_that_names_its_brokers() -> None:
    """The error has each address, and what is wrong there."""

    async def work(session: BrokerSession) -> None:
        raise AssertionError("there is no session")

    async with FakeBroker(script=lambda request: Fault.SILENT) as stuck, FakeBroker() as stopped:
        await stopped.stop()
        hosts = f"{stuck.address},{stopped.address}"
        with pytest.raises(
            NoBrokersError, match=f"{stuck.address}: no (answer|connection) .*; {stopped.address}: cannot connect"
        ):
            await asyncio.to_thread(in_session, hosts, 0.2, work)


async def test_topics_of_a_cluster_whose_brokers_have_stopped() -> None:
    """An embedded cluster in KRaft mode asks its running brokers; if there is none, the error says so."""
    with pytest.raises(ServerError, match="no broker of the cluster runs; start one"):
        await Cluster(kafka="3.9.1").create_topic("t", 1)
