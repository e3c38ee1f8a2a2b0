"""What ``doctor`` finds: at servers, and in the znodes of groups, whatever is in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kiel_groups.config import HostPort
from kiel_groups.group.cluster_identity import ClusterIdentity
from kiel_groups.group.znodes.contents import (
    FirstOffsets,
    GroupSettings,
    GroupState,
    MemberAssignment,
    MemberInfo,
    OrderedOffset,
    OrderNotice,
    Znode,
    encode_consumer_id,
    encode_offset,
    encode_owner,
)
from kiel_groups.group.znodes.group_settings import HistoryEntry, encode_weights
from kiel_groups.group.znodes.layout import CONSUMERS, ROOT, GroupLayout, WorkerLayout, topic_path
from kiel_groups.group.znodes.round_contents import (
    Offer,
    OfferedProtocol,
    RoundAssignment,
    RoundMember,
    RoundSettings,
    RoundState,
)
from kiel_groups.group.znodes.worker_contents import (
    ConfigChange,
    SourceOffset,
    StoredConnector,
    WorkerInfo,
    WorkStatus,
    encode_config_offset,
    partition_digest,
)
from kiel_groups.model import TopicPartition
from kiel_groups.ops.views.checks import Finding
from kiel_groups.ops.views.cluster_checks import (
    BrokerAnswer,
    ServerAnswer,
    check_broker,
    check_chroot,
    check_clock,
    check_ensemble,
    check_lines,
    check_mixed,
    check_rights,
    check_server,
    check_shared,
    check_znodes,
    lasting,
    rights_needed,
)
from kiel_groups.ops.views.group_view import ForeignMember
from kiel_groups.ops.views.znodes import view_group

pytestmark = pytest.mark.unit

G, W = GroupLayout("g"), WorkerLayout("g")
MEMBER = "g_host-1795871623215-1a"
T0 = TopicPartition("t", 0)
NOW_MS = 1_800_000_000_000
HISTORY = HistoryEntry(
    generation=1, cause="join", leader=MEMBER, moved=0, members=1, partitions=1, took_ms=5, created_at_ms=NOW_MS
)

SHARED = {topic_path("t"): b'{"version":1,"partitions":{"0":[1]}}', G.offset(T0): encode_offset(7)}
OF_WORKERS = {
    W.worker("w"): WorkerInfo(url="http://h:1").encode(),
    W.config: encode_config_offset(1),
    W.connector("c/1"): StoredConnector(name="c/1", config={"a": "b"}).encode(),
    W.history_entry(1): ConfigChange(offset=1, what="created", connector="c/1", worker="w", at_ms=1).encode(),
    W.status("c/1"): b"",
    W.status("c/1", 0): WorkStatus(state="RUNNING", worker="w").encode(),
    W.source_offset("c/1", partition_digest({"a": 1})): SourceOffset({"a": 1}, {"b": 2}).encode(),
}
OF_CONSUMERS = {
    **SHARED,
    G.member(MEMBER): MemberInfo(member_id=MEMBER, session_timeout_ms=10_000, subscription=("t",)).encode(),
    G.election + "/u-n_0000000001": MEMBER.encode(),
    G.group_state: GroupState(generation=1, state="done", leader=MEMBER).encode(),
    G.assignment(MEMBER): MemberAssignment(1, MEMBER, frozenset({T0})).encode(),
    G.config: GroupSettings(store="zookeeper", mode="cooperative", auto_offset_reset="earliest").encode(),
    G.weights: encode_weights({T0: 2.0}),
    f"{G.history}/0000000001": HistoryEntry(
        generation=1, cause="join", leader=MEMBER, moved=0, members=1, partitions=1, took_ms=5, created_at_ms=NOW_MS
    ).encode(),
    G.topic_starts("t"): FirstOffsets(1, 1, {0: 5}).encode(),
    G.orders: OrderNotice("1a-0", ("t",)).encode(),
    G.order("1a-0", T0): OrderedOffset(5, 1).encode(),
    G.consumer_id(MEMBER): encode_consumer_id(["t"], 1),
    G.owner(T0): encode_owner(MEMBER),
}
OF_PROGRAMS = {
    **OF_WORKERS,
    G.member(MEMBER): RoundMember(
        member_id=MEMBER, joined=1, offer=Offer("connect", (OfferedProtocol("p", b""),))
    ).encode(),
    G.election + "/u-n_0000000001": MEMBER.encode(),
    G.group_state: RoundState(generation=1, state="done", leader=MEMBER, protocol="p").encode(),
    G.assignment(MEMBER): RoundAssignment(1, MEMBER, b"").encode(),
    G.config: RoundSettings("connect").encode(),
}
#: Znodes that end with a session.
EPHEMERAL = (G.members, G.election, G.ids, G.owners, G.orders, W.workers)


def znodes(data: dict[str, bytes]) -> dict[str, Znode]:
    return {
        path: Znode(each, 0x1A if path.startswith(tuple(f"{folder}/" for folder in EPHEMERAL)) else 0)
        for path, each in data.items()
    }


def found(data: dict[str, bytes], changes: Mapping[str, Znode] = MappingProxyType({})) -> list[Finding]:
    snapshot = znodes(data) | dict(changes)
    return list(check_znodes(view_group("g", snapshot), snapshot, NOW_MS))


@pytest.mark.parametrize("data", [OF_CONSUMERS, OF_PROGRAMS, {**OF_CONSUMERS, **OF_WORKERS}])
def test_a_healthy_group_has_no_finding(data: dict[str, bytes]) -> None:
    """Neither one of consumers, nor one of workers."""
    assert found(data) == []


GARBAGE = (
    b"",
    b"\xff\xfe",
    b"null",
    b"[]",
    b"{",
    b"[" * 100_000,
    b'{"version":9}',
    b"\x00" * 100,
    b"-",
    b"\xd9" * 5_000,
)
PLACES = [(data, path) for data in (OF_CONSUMERS, OF_PROGRAMS) for path in data]
#: Znodes that may be empty: statuses and their parent, that of orders, and the configuration before its first change.
MAY_BE_EMPTY = (W.status("c/1"), W.status("c/1", 0), W.config, G.orders)


@pytest.mark.parametrize(("data", "path"), PLACES, ids=[f"{len(data)} {path}" for data, path in PLACES])
@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_in_any_znode_is_found(data: dict[str, bytes], path: str, garbage: bytes) -> None:
    """The finding names the znode and what to do, in a bounded text; there is no traceback."""
    if (not garbage and path in MAY_BE_EMPTY) or (b"version" in garbage and path.startswith(G.ids)):
        return
    findings = [each for each in found({**data, path: garbage}) if path in each.text]
    assert [each.kind for each in findings] == ["unreadable"]
    assert findings[0].remedy
    assert not any(word in findings[0].remedy for word in ("GROUP", "PATH", "DATA", "TOPIC"))
    assert len(findings[0].text) <= 500


@given(st.sampled_from(PLACES), st.binary(max_size=200) | st.text(max_size=50).map(str.encode))
def test_any_bytes_in_any_znode_raise_nothing(place: tuple[dict[str, bytes], str], garbage: bytes) -> None:
    """Whatever is in a znode, the other checks go on, and their text fits a terminal."""
    data, path = place
    for finding in found({**data, path: garbage}):
        assert len(finding.text) <= 1_000


def test_znodes_that_no_session_ends_are_found() -> None:
    """A backup that was restored, or an operator, may have made them."""
    (finding,) = found(OF_CONSUMERS, {G.owner(T0): Znode(encode_owner(MEMBER))})
    assert (finding.kind, finding.remedy) == (
        "not-ephemeral",
        f"written by hand or restored from a backup; delete each (zkCli: delete {G.owner(T0)})",
    )


def test_offsets_in_topics_that_are_gone() -> None:
    """With and without members; a topic of a name that Kafka does not permit is another client's."""
    folders = dict.fromkeys([G.topic_offsets(each) for each in ("t", "old", "b'x'")], b"")
    gone = {**OF_CONSUMERS, **folders, G.offset(TopicPartition("old", 0)): b"1", f"{G.offsets}/b'x'/0": b"1"}
    (finding,) = found(gone)
    assert (finding.kind, finding.text, finding.remedy) == (
        "gone-offsets",
        "the group has offsets in 1 topic or partition that does not exist: old",
        "'kiel-groups offsets delete g --topic old' deletes them",
    )
    dead = {f"{G.members}": b"", G.topic_offsets("t"): b"", G.offset(T0): b"1"}
    (finding,) = found(dead)
    assert (finding.kind, finding.remedy.split(",")[0]) == (
        "dead-group",
        "'kiel-groups groups delete g' deletes it",
    )
    assert found({G.offsets: b"", f"{G.offsets}/old": b""}) == []


def test_znodes_that_are_nearly_full() -> None:
    """Data, and names in a folder; below four fifths of 1 MiB nothing is said."""
    config = OF_CONSUMERS[G.config]
    padded = config + b" " * ((1 << 20) * 8 // 10)
    (finding,) = found({**OF_CONSUMERS, G.config: padded})
    assert (finding.kind, f"{G.config} (80%)" in finding.text) == ("nearly-full", True)
    assert found({**OF_CONSUMERS, G.config: padded[len(config) + 100 :] and config + b" " * 800_000}) == []
    names = [f"{number:0100d}" for number in range(8_200)]
    assert [each.kind for each in check_shared({CONSUMERS: names}, {ROOT: 31, CONSUMERS: 31}).findings] == [
        "nearly-full"
    ]


def test_rights_that_members_lack() -> None:
    """Members have no identity, so what the world may not do, they may not; some znodes are read only."""
    needed = rights_needed("g", [*G.parents, *OF_CONSUMERS, G.topic_owners("t"), G.topic_offsets("t")])
    assert G.offset(T0) not in needed
    assert G.topic_offsets("t") in needed
    assert list(check_rights(needed, dict.fromkeys(needed, 31))) == []
    assert list(check_rights(needed, {G.config: 1, G.weights: 1})) == []
    (finding,) = check_rights(needed, {**dict.fromkeys(needed, 31), G.members: 1, G.offsets: 0})
    assert (finding.kind, finding.remedy.startswith("give --security")) == ("acl", True)
    assert f"ACLs of 2 znodes of {len(needed)} keep members" in finding.text
    assert f"{G.offsets} (anyone: nothing), {G.members} (anyone: r)" in finding.text
    assert check_shared({}, {"/": 31}).findings == ()
    assert [each.kind for each in check_shared({}, {"/": 1, ROOT: 31}).findings] == ["acl"]


def test_one_name_with_two_coordinations() -> None:
    """Live members of both kinds share a name; foreign ones count, workers of brokers do not."""
    ours, empty = view_group("g", znodes(OF_CONSUMERS)), view_group("g", {})
    (finding,) = check_mixed([ours], [ours])
    assert (finding.kind, "1 member in ZooKeeper, and 1 member that brokers" in finding.text) == ("mixed", True)
    java = replace(empty, foreign_members=(ForeignMember("java", "/x"),))
    assert len(list(check_mixed([java], [ours]))) == 1
    assert list(check_mixed([ours], [empty])) == list(check_mixed([empty], [ours])) == []
    assert list(check_mixed([ours], [replace(ours, group="h")])) == []


def test_servers_of_zookeeper() -> None:
    """A server that does not serve, one that keeps its version to itself, and one of another ensemble."""
    first = ServerAnswer(HostPort("a", 2181), "", "3.4.6", "leader", 6_000, 4_000, 40_000)
    silent = first._replace(address=HostPort("b", 2181), version="", mode="", is_stranger=True)
    dead = ServerAnswer(HostPort("c", 2181), "Connection refused")
    assert check_server(first).text == (
        "3.4.6, leader; sessions: 6 s granted to members that ask for 10 s, 4 s to 40 s possible"
    )
    assert check_server(silent).text.startswith("version unknown ('srvr' is not whitelisted); sessions")
    assert [each.kind for each in check_server(dead).findings] == ["unreachable"]
    assert check_server(dead).findings[0].remedy.startswith("start it")
    refused = dead._replace(problem="its certificate is refused: certificate has expired")
    assert "--security" in check_server(refused).findings[0].remedy
    assert "b:2181: of another ensemble than a:2181" in check_ensemble([dead, first, silent]).findings[0].text
    assert check_ensemble([first, dead]).findings == check_ensemble([dead, dead]).findings == ()


def test_brokers_and_chroots() -> None:
    """Where brokers are registered, whether they answer, and whether they are those of ZooKeeper."""
    assert check_chroot("z:1", "/x", 3, {}).findings == ()
    elsewhere = check_chroot("z:1", "/x", 0, {"/kafka": 3, "": 1}, exists=False).findings[0]
    assert elsewhere.text == "the chroot /x does not exist; elsewhere: 1 broker below /, 3 brokers below /kafka"
    assert elsewhere.remedy == "give --zookeeper z:1 and 1 more"
    assert [each.kind for each in check_chroot("z:1", "", 0, {}).findings] == ["brokerless"]
    broker = BrokerAnswer("broker 1 at b:9092", release="Kafka 0.8")
    ours = ClusterIdentity({1: frozenset({HostPort("a", 9092)})}, {"t": {0: (1,)}})
    proxied = ours._replace(brokers={1: frozenset({HostPort("b", 9092)})})
    assert check_broker(broker, ours).text == "Kafka 0.8"
    assert check_broker(broker._replace(identity=ours), ours).text == "Kafka 0.8"
    behind = check_broker(broker._replace(identity=proxied), ours)
    assert (behind.findings, "as behind a proxy" in behind.text) == ((), True)
    other = broker._replace(is_too_new=True, identity=proxied._replace(topics={"u": {0: (1,)}}))
    wrong = check_broker(other, ours, "the first broker").findings
    assert [each.kind for each in wrong] == ["other-cluster", "too-new"]
    assert wrong[0].text.endswith("the first broker has the topics t, and this one has u")
    (doubt,) = check_broker(broker._replace(identity=proxied._replace(topics={})), ours).findings
    assert doubt.kind == "unknown-cluster"
    for problem, remedy in (
        ("Connection refused", "start it; if it is running"),
        ("cannot connect: it refuses the user or the password (PLAIN): Authentication failed", "give --security"),
    ):
        (finding,) = check_broker(broker._replace(problem=problem), ours).findings
        assert (finding.kind, finding.remedy.startswith(remedy)) == ("unreachable", True)


def test_clocks_as_far_as_they_can_be_compared() -> None:
    """Without a write, only a clock that is behind ZooKeeper's is certain."""
    assert check_clock(NOW_MS + 60_000, NOW_MS).findings[0].kind == "clock"
    assert "60 s in the future" in check_clock(NOW_MS + 60_000, NOW_MS).findings[0].text
    text = "not behind ZooKeeper's; if it is ahead, by less than the 3,600 s since the newest znode"
    assert check_clock(NOW_MS - 3_600_000, NOW_MS).text == text
    assert check_clock(NOW_MS + 1_000, NOW_MS).findings == check_clock(0, NOW_MS).findings == ()


def test_only_what_lasts_is_wrong() -> None:
    """A member that joins between two reads looks like an owner that is none."""
    once, always = Finding("orphans", "for 1 s", members=("a",)), Finding("orphans", "for 3 s", members=("b",))
    assert lasting([once, replace(always, text="for 1 s")], [always, Finding("acl", "new")]) == (always,)


def test_a_check_is_one_line_and_its_problems() -> None:
    """A word comes first; a problem is followed by its remedy."""
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(check_lines(check_chroot("z:1", "", 0, {"/kafka": 1})))
        console.print(check_lines(check_chroot("z:1", "", 2, {})))
    assert [line.rstrip() for line in capture.get().splitlines()] == [
        "wrong  chroot /: no broker",
        "       no broker is registered below /; elsewhere: 1 broker below /kafka",
        "       → give --zookeeper z:1/kafka",
        "ok     chroot /: 2 brokers are registered",
    ]
