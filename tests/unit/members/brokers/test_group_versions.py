"""Which group requests the brokers know, found out without a time-out; and brokers that cannot be used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from kiel_groups.clients.net import cluster_metadata
from kiel_groups.clients.net.cluster_metadata import ClusterMetadata
from kiel_groups.errors import ConfigError, NoBrokersError
from kiel_groups.members.brokers.coordinator import BrokerCoordinator
from kiel_groups.members.brokers.versions import GroupVersions
from kiel_groups.metrics import Metrics
from tests.helpers.coordinator_answers import NO_TOPIC, ONE_TOPIC, versions
from tests.helpers.fake_broker import FakeBroker, Fault, Request, Script
from tests.helpers.leftovers import Leftovers
from tests.helpers.scripted_coordinator import QuietRuntime, RecordedHooks, ScriptedTransport, scripted_context

pytestmark = pytest.mark.unit

FETCH, JOIN_GROUP, LIST_GROUPS, API_VERSIONS = 1, 11, 16, 18
NO_GROUPS = bytes(6)


def release(probed: bytes | Fault, asked: bytes | Fault = Fault.SILENT, listed: bytes | Fault = NO_GROUPS) -> Script:
    """Return a broker's answers to the probe, to ApiVersions and to ListGroups."""
    return lambda request: {FETCH: probed, API_VERSIONS: asked, LIST_GROUPS: listed}.get(request.api_key)


OLDER, LATER = [FETCH, LIST_GROUPS], [FETCH, API_VERSIONS]

#: A broker's answers, whether it knows a rebalance timeout, and the requests that it gets.
RELEASES: dict[str, tuple[Script, bool, list[int]]] = {
    "0.9": (release(NO_TOPIC), False, OLDER),
    "0.9 whose groups are still loading": (release(NO_TOPIC, listed=b"\x00\x0e" + bytes(4)), False, OLDER),
    "0.10.0": (
        release(Fault.CLOSE, versions({FETCH: (0, 2), JOIN_GROUP: (0, 0)})),
        False,
        [FETCH, FETCH, API_VERSIONS],
    ),
    "0.10.1": (release(ONE_TOPIC, versions({FETCH: (0, 3), JOIN_GROUP: (0, 1)})), True, LATER),
    "3.9": (release(ONE_TOPIC, versions({FETCH: (0, 17), JOIN_GROUP: (0, 9)})), True, LATER),
}


@asynccontextmanager
async def cluster_of(broker: FakeBroker, **settings: int) -> AsyncIterator[ClusterMetadata]:
    cluster = ClusterMetadata(broker.config(**settings), Metrics())
    try:
        await cluster.refresh((), "test")
        yield cluster
    finally:
        cluster.close()


@pytest.mark.parametrize("name", RELEASES)
async def test_brokers_are_asked_for_their_versions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A probe tells brokers of 0.9 from later ones. Only the later ones are asked for their versions: the question would
    cost the other clients of a broker of 0.9 their requests. No answer is waited for that does not come.
    """
    monkeypatch.setattr(cluster_metadata, "_FIRST_PAUSE_S", 0.001)
    script, expected, requests = RELEASES[name]
    left = Leftovers()
    async with FakeBroker(script=script) as broker, cluster_of(broker, request_timeout_ms=60_000) as cluster:
        asked = GroupVersions()
        assert not asked.has_rebalance_timeout
        async with asyncio.timeout(5):
            await asked.probe(cluster)
        assert asked.has_rebalance_timeout is expected
        assert [request.api_key for request in broker.requests[1:]] == requests
    await left.check(5, 5)


async def test_brokers_are_asked_again_by_each_connect() -> None:
    """A consumer that connects again after an upgrade finds the versions of now."""
    answers = [RELEASES["3.9"][0], RELEASES["0.9"][0]]
    async with FakeBroker() as broker, cluster_of(broker) as cluster:
        asked = GroupVersions()
        for script, expected in zip(answers, (True, False), strict=True):
            broker.script = script
            await asked.probe(cluster)
            assert asked.has_rebalance_timeout is expected


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        (
            release(bytes(4), listed=Fault.CLOSE),
            ConfigError,
            "does not know group requests: brokers coordinate groups from Kafka 0.9 on",
        ),
        (release(Fault.CLOSE, Fault.CLOSE), ConfigError, "with older ones, use coordination='zookeeper'"),
        (release(Fault.CLOSE, versions({FETCH: (4, 17), JOIN_GROUP: (0, 9)})), ConfigError, "as those of Kafka 4"),
        (release(ONE_TOPIC, versions({JOIN_GROUP: (0, 9)})), ConfigError, "reads and writes Kafka 0.8 to 3.9"),
        (release(Fault.SILENT), NoBrokersError, "does not say which requests it knows: .*no answer"),
        (release(ONE_TOPIC, Fault.SILENT), NoBrokersError, "does not say which requests it knows: .*no answer"),
        (release(b"\x00"), NoBrokersError, "answer to a FetchProbeRequest"),
        (release(NO_TOPIC, listed=b"\x00"), NoBrokersError, "answer to a ListGroupsRequest"),
        (release(ONE_TOPIC, b"\x00"), NoBrokersError, "answer to a ApiVersionsRequest"),
    ],
    ids=[
        "0.8",
        "0.8.0",
        "4.x",
        "without fetches",
        "frozen",
        "frozen later",
        "no probe",
        "half an answer",
        "no versions",
    ],
)
async def test_unusable_brokers_are_named(
    script: Script, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that are too old, too new, frozen or incomprehensible are an error that says what to do, in time."""
    monkeypatch.setattr(cluster_metadata, "_FIRST_PAUSE_S", 0.001)
    left = Leftovers()
    # The time of a busy computer for an answer, unless there is none.
    limit_ms = 200 if "no answer" in words else 10_000
    async with FakeBroker(script=script) as broker, cluster_of(broker, connect_timeout_ms=limit_ms) as cluster:
        with pytest.raises(kind, match=words):
            await GroupVersions().probe(cluster)
    await left.check(5, 5)


async def test_a_broker_that_stops_is_not_taken_for_an_old_one() -> None:
    """A broker that closes a connection and refuses the next one is down; nothing is said of its release."""
    async with FakeBroker() as broker, cluster_of(broker) as cluster:

        def stops(request: Request) -> Any:
            if request.api_key != FETCH:
                return None
            broker._server.close()  # type: ignore[union-attr]
            return Fault.CLOSE

        broker.script = stops
        with pytest.raises(NoBrokersError, match="cannot connect"):
            await GroupVersions().probe(cluster)


async def test_a_broker_that_stops_is_replaced_by_another() -> None:
    """Metadata may name a broker that is down; another one is asked then."""
    async with FakeBroker(node_id=1) as down, FakeBroker(node_id=2, script=RELEASES["3.9"][0]) as other:
        down.peers = other.peers = [down, other]
        async with cluster_of(other) as cluster:
            await down.stop()
            asked = GroupVersions()
            await asked.probe(cluster)
            assert asked.has_rebalance_timeout


async def test_brokers_of_a_given_release_are_not_asked() -> None:
    """The argument ``api_version`` replaces the question."""
    async with FakeBroker() as broker, cluster_of(broker) as cluster:
        given = GroupVersions((0, 10, 1))
        await given.probe(cluster)
        assert given.has_rebalance_timeout
        assert broker.count(API_VERSIONS) == 0


@pytest.mark.parametrize(
    ("given", "expected"), [((0, 9), False), ((0, 10), False), ((0, 10, 1), True), ((1,), True), ((3, 9, 1), True)]
)
def test_a_given_release_says_what_its_brokers_know(given: tuple[int, ...], expected: bool) -> None:
    """The rebalance timeout came with 0.10.1."""
    assert GroupVersions(given).has_rebalance_timeout is expected


@pytest.mark.parametrize(
    ("given", "expected"), [(None, False), ((0, 9), False), ((2, 1, 1), False), ((2, 2), True), ((3, 9, 1), True)]
)
def test_a_given_release_says_when_its_brokers_name_members(given: tuple[int, ...] | None, expected: bool) -> None:
    """Brokers from 2.2 on name a new member before it waits for the others; without a release, they must say so."""
    assert GroupVersions(given).names_members_first is expected


@pytest.mark.parametrize(("given", "version"), [((0, 9), 0), ((0, 10, 1), 1), ((2, 1), 1), ((2, 2), 4), ((3, 9), 4)])
async def test_a_join_has_the_newest_version_that_the_brokers_know(given: tuple[int, ...], version: int) -> None:
    """Brokers would close the connection if they did not know the version."""
    trace: list[str] = []
    transport = ScriptedTransport(trace)
    context = replace(scripted_context(transport, QuietRuntime()), versions=GroupVersions(given))
    coordinator = BrokerCoordinator(context, RecordedHooks(trace), lambda *_: None)
    await coordinator.join(1, "")
    (sent,) = transport.sent
    assert version == sent.API_VERSION
    assert version == 0 or sent.rebalance_timeout_ms == context.timing.rebalance_timeout_ms


@pytest.mark.parametrize(("most", "expected"), [(0, False), (1, False), (3, False), (4, True), (9, True)])
async def test_brokers_say_whether_they_name_members_first(most: int, expected: bool) -> None:
    """JoinGroup v4 is the version with which they do."""
    script = release(ONE_TOPIC, versions({FETCH: (0, 17), JOIN_GROUP: (0, most)}))
    async with FakeBroker(script=script) as broker, cluster_of(broker) as cluster:
        asked = GroupVersions()
        await asked.probe(cluster)
        assert asked.names_members_first is expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("0.9", r"api_version: '0.9' given; expected a release as a tuple, such as \(0, 9\)"),
        ((0, "9"), "expected a release as a tuple"),
        ((False, 9), "expected a release as a tuple"),
        ([0, 9], "expected a release as a tuple"),
        ((), "brokers coordinate groups from Kafka 0.9 on"),
        ((0, 8, 2), r"api_version: \(0, 8, 2\) given; brokers coordinate groups from Kafka 0.9 on"),
        ((4, 0), r"api_version: \(4, 0\) given, whose brokers no longer support the requests"),
    ],
)
def test_a_release_that_cannot_be_used_is_refused(given: Any, words: str) -> None:
    """A value that is no release, and one whose brokers are too old or too new, is a ConfigError."""
    with pytest.raises(ConfigError, match=words):
        GroupVersions(given)
