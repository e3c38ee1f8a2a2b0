"""Groups of scripted brokers with their lag: how many requests that takes, and what the command line shows of it."""

from __future__ import annotations

import asyncio
import json

import pytest

from kiel_groups.cli.app import run
from kiel_groups.cli.parameters import options
from kiel_groups.model import TopicPartition
from kiel_groups.ops.broker_reader import OFFSETS_TOPIC, BrokerGroups
from tests.helpers.coordinator_answers import (
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    LIST_GROUPS,
    OFFSET_FETCH,
    described,
    listed,
    named,
    offsets,
    tool_script,
)
from tests.helpers.fake_broker import LIST_OFFSETS, FakeBroker, Fault, message_set

pytestmark = pytest.mark.unit

TOPICS = {"t": 3, "u": 1, OFFSETS_TOPIC: 1}
GROUPS = [f"group-{number}" for number in range(20)]


def coordinating(broker: FakeBroker) -> None:
    """Have a broker coordinate all groups, which have committed offset 2 in each partition of 5 records."""
    broker.script = tool_script(
        {
            LIST_GROUPS: listed(0, *GROUPS),
            DESCRIBE_GROUPS: described(dict.fromkeys(GROUPS, 0)),
            FIND_COORDINATOR: named(broker),
            OFFSET_FETCH: offsets(2),
        }
    )
    for partition in broker.logs:
        broker.append(partition, message_set(*[b"a record"] * 5))


async def test_each_log_end_is_asked_for_once_for_all_groups() -> None:
    """Twenty groups cost one request each for their offsets, and one request for the ends of all logs."""
    async with FakeBroker(TOPICS, 1) as broker:
        coordinating(broker)
        loaded = await asyncio.to_thread(BrokerGroups(str(broker.address)).load_all, with_lag=True)
        counts = [broker.count(key) for key in (LIST_GROUPS, DESCRIBE_GROUPS, OFFSET_FETCH, LIST_OFFSETS)]
        (ends,) = broker.received(LIST_OFFSETS)
    assert (loaded.lag_problem, loaded.problems) == ("", ())
    assert {view.group: view.known_lag for view in loaded.groups} == dict.fromkeys(GROUPS, 4 * 3)
    assert counts == [1, 1, len(GROUPS), 1]
    # The replica, the number of topics, and for each topic its name, the number of partitions and 16 bytes for each.
    assert len(ends.body) == 4 + 4 + 2 * (2 + 1 + 4) + 4 * 16


async def test_a_list_without_lag_asks_for_no_offset() -> None:
    """Only ``--lag`` costs requests for each group."""
    async with FakeBroker(TOPICS, 1) as broker:
        coordinating(broker)
        loaded = await asyncio.to_thread(BrokerGroups(str(broker.address)).load_all, with_lag=False)
        assert broker.count(OFFSET_FETCH) == broker.count(LIST_OFFSETS) == broker.count(FIND_COORDINATOR) == 0
    assert [view.group for view in loaded.groups] == sorted(GROUPS)


async def test_an_operator_sees_which_broker_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    ``groups`` lists the groups of the other brokers, with the lag in their partitions. Warnings name the broker whose
    groups and log ends are missing, and the exit status is 1.
    """
    monkeypatch.setattr(options, "SERVER_WAIT_S", 0.3)
    async with FakeBroker(TOPICS, 1) as broker, FakeBroker(TOPICS, 2) as stuck:
        broker.peers = [broker, stuck]
        broker.leaders[TopicPartition("u", 0)] = 2
        coordinating(broker)
        stuck.script = lambda request: Fault.SILENT
        words = ["groups", "--lag", "--json", "--coordination=brokers", f"--brokers={broker.address}"]
        status = await asyncio.to_thread(run, words)
    out, err = capsys.readouterr()
    assert status == 1
    assert {each["group"]: each["lag"] for each in json.loads(out)} == dict.fromkeys(GROUPS, 3 * 3)
    assert err.splitlines() == [
        f"warning: the groups of broker 2 at {stuck.address} are not known: {stuck.address}: no answer to a"
        " ListGroupsRequest within 300 ms",
        f"warning: the lag is not fully known: broker 2 at {stuck.address} did not answer within 0.3 s",
    ]
