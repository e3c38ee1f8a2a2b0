"""The view, the problems and the reports of a group of programs, such as workers."""

from __future__ import annotations

import pytest

from kiel_groups.group.znodes.contents import Snapshot, Znode
from kiel_groups.group.znodes.round_contents import (
    Offer,
    OfferedProtocol,
    RoundAssignment,
    RoundMember,
    RoundSettings,
    RoundState,
)
from kiel_groups.group.znodes.worker_contents import (
    StoredConnector,
    WorkerInfo,
    WorkState,
    WorkStatus,
    encode_config_offset,
)
from kiel_groups.ops.views.checks import check_group
from kiel_groups.ops.views.documents import group_document, outline_document
from kiel_groups.ops.views.progress import Verification
from kiel_groups.ops.views.znodes import view_group
from tests.helpers.group_snapshots import HEALTHY, LATER_MS, LOG_ENDS, PLANNED_MS, listing_text, report_text

pytestmark = pytest.mark.unit

A, B = "g_host-1700000000001-aaaa", "g_host-1700000000002-bbbb"
ROOT = "/kiel-groups/g"
WORKER = Znode(WorkerInfo(url="http://h:1").encode(), 5)


def member(name: str, started_at_ms: int, protocol_type: str) -> Znode:
    offer = Offer(protocol_type, (OfferedProtocol("p", b"data"),))
    made = RoundMember(member_id=name, joined=4, offer=offer, host="host", pid=17, started_at_ms=started_at_ms)
    return Znode(made.encode(), int(name.rpartition("-")[2], 16))


def group(protocol_type: str, **differing: Znode) -> dict[str, Znode]:
    """Return the znodes of a healthy group of two programs; ``differing`` replaces some, by their last names."""
    state = RoundState(generation=4, state="done", leader=A, protocol="p", members=(A, B), created_at_ms=PLANNED_MS)
    found = {
        ROOT: Znode(),
        f"{ROOT}/members/{A}": member(A, PLANNED_MS, protocol_type),
        f"{ROOT}/members/{B}": member(B, PLANNED_MS + 1, protocol_type),
        f"{ROOT}/election/ffff-n_0000000001": Znode(A.encode()),
        f"{ROOT}/election/aaaa-n_0000000002": Znode(B.encode()),
        f"{ROOT}/config": Znode(RoundSettings(protocol_type).encode()),
        f"{ROOT}/allocation": Znode(state.encode()),
        f"{ROOT}/allocation/{A}": Znode(RoundAssignment(4, A, b"x").encode()),
    }
    return {path: differing.get(path.rpartition("/")[2], znode) for path, znode in found.items()}


def without(part: str) -> Snapshot:
    """Return a group of workers without the znodes whose paths have a part."""
    return {path: znode for path, znode in group("connect").items() if part not in path}


def test_programs_are_described_without_partitions() -> None:
    """Nothing is wrong with a healthy group. The report has its members and its newest round, and no partitions."""
    view = view_group("g", group("numbers"))
    assert check_group(view, LATER_MS) == ()
    text = report_text(view)
    for expected in ("done: 2 members", "numbers: programs", "4, done, 10 s ago", "aaaa leads", "bbbb", "17"):
        assert expected in text
    assert not [word for word in ("partition", "lag", "allocator") if word in text.replace("than partitions", "")]
    document = group_document(view, (), lag_problem="")
    assert (document["type"], document["state"], document["settings"]) == ("numbers", "done", None)
    assert (document["round"]["protocol"], document["lag"]) == ("p", None)
    assert [(each["id"], each["leads"], each["protocols"]) for each in document["members"]] == [
        (A, True, ["p"]),
        (B, False, ["p"]),
    ]


def test_workers_are_shown_elsewhere() -> None:
    """The report of a group of workers names the command that shows their connectors."""
    text = " ".join(report_text(view_group("g", group("connect"))).split())
    assert "workers, which share connectors; 'kiel-groups workers describe g' shows them" in text


@pytest.mark.parametrize(
    ("znodes", "state", "members"),
    [
        (group("connect"), "done", 2),
        (without("/members/"), "empty", 0),
        (without("/allocation"), "joining", 2),
        ({ROOT: Znode(), f"{ROOT}/workers": Znode(), f"{ROOT}/workers/w1": WORKER}, "by brokers", 1),
        ({ROOT: Znode(), f"{ROOT}/connect": Znode(encode_config_offset(1))}, "empty", 0),
    ],
)
def test_the_list_of_groups_has_types(znodes: Snapshot, state: str, members: int) -> None:
    """A group of workers is one wherever it is coordinated, also without live members."""
    view = view_group("g", znodes)
    outline = outline_document(view, with_lag=True)
    assert (outline["type"], outline["state"], outline["members"], outline["lag"]) == ("connect", state, members, None)
    assert check_group(view, LATER_MS) == ()
    listing = listing_text([view, view_group("h", {})], 80)
    assert "type" in listing
    assert [line.split()[-1] for line in listing.splitlines() if line.strip(" ─")] == ["type", "connect", "0"]
    assert f" {members} " in listing
    assert (state == "by brokers") == ("describe g --coordination brokers" in report_text(view))
    assert view.worker_urls == (("http://h:1",) if state == "by brokers" else ())


def test_consumers_are_no_programs() -> None:
    """The list of groups has no types as long as all are of consumers."""
    view = view_group("g", HEALTHY)
    assert (view.is_of_consumers, view.protocol_type) == (True, "consumer")
    assert "type" not in listing_text([view], 80)


def test_what_is_wrong_with_programs_is_found() -> None:
    """Garbage in a znode, and a member that the leader refuses, need an operator."""
    state = RoundState(generation=4, state="done", leader=A, refused={B: "it offers q"})
    znodes = {**group("numbers", allocation=Znode(state.encode())), f"{ROOT}/allocation/{B}": Znode(b"garbage")}
    refused, unreadable = sorted(check_group(view_group("g", znodes), LATER_MS), key=lambda each: each.kind)
    assert (refused.text, refused.members) == ("the leader refuses bbbb: it offers q", (B,))
    assert f"{ROOT}/allocation/{B}: not JSON" in unreadable.text
    for name in ("config", "allocation", A):
        view = view_group("g", group("numbers", **{name: Znode(b"garbage")}))
        assert "not JSON" in check_group(view, LATER_MS)[0].text
        assert view.protocol_type == "numbers"


#: What a worker of an earlier version that was refused has left in a group of others.
def test_verification_of_workers_without_a_member_says_how_to_start_one() -> None:
    """There is nothing about partitions, which workers do not share."""
    left = view_group("g", without("/members/"))
    verification = Verification(0)
    for later_ms in (0, 1_000):
        verification.take(left, LATER_MS + later_ms)
    (finding,) = [each for each in verification.findings if each.kind == "no-members"]
    assert finding.text == "the group has no members"
    assert finding.remedy.startswith("'kiel-groups workers run --group g' starts one")


def test_remedies_for_unreadable_znodes_name_commands() -> None:
    """The process that owns a deleted znode registers again; so does a member, and its leader writes a round."""
    garbage = Znode(b"garbage", 9)
    worker = {f"{ROOT}/workers/w": garbage, f"{ROOT}/connect/connectors/its%20name": garbage}
    view = view_group("g", group("connect", allocation=garbage) | worker)
    remedies = {text.partition(":")[0]: remedy for text, remedy in view.unreadable}
    places = (f"{ROOT}/allocation", f"{ROOT}/workers/w", f"{ROOT}/connect/connectors/its%20name")
    assert [remedies[place] for place in places] == [
        f"delete the znode of a member (zkCli: delete {ROOT}/members/{A}); it joins again, and the leader writes this"
        " one again",
        f"delete it (zkCli: delete {ROOT}/workers/w); a live worker registers again, and starts its work again",
        "'kiel-groups connectors config 'its name' --file FILE' replaces it,"
        " 'kiel-groups connectors delete 'its name'' deletes it",
    ]
    left = {path: znode for path, znode in group("connect", allocation=garbage).items() if "/members/" not in path}
    assert [each.remedy for each in view_group("g", left).unreadable] == ["start a member, which replaces it"]


LEFT_BY_A_WORKER = {f"{ROOT}/workers": Znode(), f"{ROOT}/connect": Znode(), f"{ROOT}/connect/connectors": Znode()}


@pytest.mark.parametrize(
    "live", [{}, {f"{ROOT}/workers/w1": WORKER, f"{ROOT}/connect": Znode(encode_config_offset(1))}], ids=str
)
def test_consumers_stay_consumers_beside_what_workers_have_left(live: Snapshot) -> None:
    """The settings say what the members are: nothing is wrong, and no remedy would delete them."""
    view = view_group("g", {**HEALTHY, **LEFT_BY_A_WORKER, **live}, LOG_ENDS)
    assert (view.is_of_consumers, view.state, view.size) == (True, "settled", 2)
    assert check_group(view, LATER_MS) == ()


@pytest.mark.parametrize("path", ["/consumers/g/ids/g_java-1-1", "/consumers/g/offsets/t/0"])
def test_other_clients_groups_are_no_workers_groups_because_of_empty_folders(path: str) -> None:
    """A group of Java consumers, or of offsets alone, has no settings."""
    view = view_group("g", {**LEFT_BY_A_WORKER, path: Znode(b"1")})
    assert view.is_of_consumers
    assert check_group(view, LATER_MS) == ()


def test_failed_work_is_a_problem() -> None:
    """A failed connector or task needs an operator. A status from before the present claim counts no more."""
    connect = f"{ROOT}/connect"
    failed = WorkStatus(WorkState.FAILED, "h:1", "Traceback\n  File\nValueError: bad").encode()
    samples = (("lag", (("topic", "a"),), 3.0),)
    running = WorkStatus(WorkState.RUNNING, "h:1", metrics=samples).encode()
    znodes = {
        **group("connect"),
        f"{ROOT}/workers/w": WORKER,
        connect: Znode(encode_config_offset(1)),
        f"{connect}/connectors/a%2Fb": Znode(StoredConnector(name="a/b", config={}).encode(), czxid=1),
        f"{connect}/status/a%2Fb": Znode(WorkStatus(WorkState.RUNNING, "h:1").encode(), mzxid=3),
        **{f"{connect}/owners/a%2Fb/{name}": Znode(b"w", 5, czxid=2) for name in ("connector", "0", "1", "2")},
        **{f"{connect}/status/a%2Fb/{task}": Znode(failed, mzxid=3) for task in (0, 1)},
        f"{connect}/status/a%2Fb/2": Znode(failed, mzxid=1),
        f"{connect}/status/a%2Fb/3": Znode(failed, mzxid=3),
        f"{connect}/owners/a%2Fb/4": Znode(b"w", 5, czxid=2),
        f"{connect}/status/a%2Fb/4": Znode(running, mzxid=3),
    }
    view = view_group("g", znodes)
    assert [(*work, status.metrics) for *work, status in view.statuses if status.metrics] == [("a/b", 4, samples)]
    (finding,) = check_group(view, LATER_MS)
    assert (finding.kind, finding.passing) == ("failed", False)
    assert finding.text == "task a/b-0 has failed: ValueError: bad; so have a/b-1"
    assert "'kiel-groups connectors restart a/b --with-tasks --only-failed --url http://h:1'" in finding.remedy
