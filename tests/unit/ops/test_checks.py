"""What is wrong with a group is found, named, and told from what a rebalance looks like."""

from __future__ import annotations

import io
import json
from collections import Counter

import pytest
from rich.console import Console

from kiel_groups.group.znodes.contents import GroupSettings, GroupState, MemberAssignment, MemberInfo
from kiel_groups.group.znodes.history import HistoryEntry
from kiel_groups.group.znodes.partition_weights import encode_weights
from kiel_groups.group.znodes.snapshot import Snapshot, Znode
from kiel_groups.model import TopicPartition
from kiel_groups.ops.checks import SETTLING_MS, UNOPENED_MS, Finding, check_group
from kiel_groups.ops.group_view import GroupView, view_group
from kiel_groups.ops.json_documents import group_document, outline_document
from kiel_groups.ops.report import Listed, ago, group_report, groups_table

pytestmark = pytest.mark.unit

PLANNED_MS = 1_700_000_000_000
LATER_MS = PLANNED_MS + SETTLING_MS + 1
PARTITIONS = [TopicPartition("t", number) for number in range(3)]
A, B = "g_host-1-aaaa", "g_host-2-bbbb"


def member(name: str, started_at_ms: int, *topics: str) -> Znode:
    info = MemberInfo(
        member_id=name, session_timeout_ms=6_000, subscription=topics, host="host", pid=17, started_at_ms=started_at_ms
    )
    return Znode(info.encode(), int(name.rpartition("-")[2], 16))


def plan(**differing: object) -> Znode:
    fields = {"generation": 4, "state": "done", "leader": A, "allocator": "round_robin", "created_at_ms": PLANNED_MS}
    return Znode(GroupState(**(fields | differing)).encode())  # type: ignore[arg-type]


def config(**dynamic_config: object) -> Znode:
    return Znode(
        json.dumps({"store": "zookeeper", "mode": "eager", "auto_offset_reset": "latest"} | dynamic_config).encode()
    )


#: A group of two, in which all is well.
WELL: Snapshot = {
    f"/kiel-groups/g/members/{A}": member(A, PLANNED_MS, "t"),
    f"/kiel-groups/g/members/{B}": member(B, PLANNED_MS + 1, "t"),
    "/kiel-groups/g/election/ffff-n_0000000001": Znode(A.encode()),
    "/kiel-groups/g/election/aaaa-n_0000000002": Znode(B.encode()),
    "/kiel-groups/g/allocation": plan(),
    f"/kiel-groups/g/allocation/{A}": Znode(MemberAssignment(4, A, frozenset(PARTITIONS[:2])).encode()),
    f"/kiel-groups/g/allocation/{B}": Znode(MemberAssignment(4, B, frozenset(PARTITIONS[2:])).encode()),
    "/kiel-groups/g/config": Znode(
        GroupSettings(store="zookeeper", mode="cooperative", auto_offset_reset="earliest").encode()
    ),
    f"/consumers/g/ids/{A}": Znode(b"{}", 0xAAAA),
    f"/consumers/g/ids/{B}": Znode(b"{}", 0xBBBB),
    "/consumers/g/owners/t": Znode(),
    "/consumers/g/owners/t/0": Znode(f"{A}-0".encode()),
    "/consumers/g/owners/t/1": Znode(f"{A}-0".encode()),
    "/consumers/g/owners/t/2": Znode(f"{B}-0".encode()),
    "/consumers/g/offsets/t": Znode(),
    **{f"/consumers/g/offsets/t/{number}": Znode(b"10", modified_ms=PLANNED_MS) for number in range(3)},
    "/brokers/topics/t": Znode(b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0]}}'),
}
LOG_ENDS = dict.fromkeys(PARTITIONS, 12)


def without(*paths: str) -> Snapshot:
    return {path: znode for path, znode in WELL.items() if path not in paths}


#: Kind → what makes it, and what the finding says.
WRONG: dict[str, tuple[Snapshot, str]] = {
    "foreign": (
        {**WELL, "/consumers/g/ids/g_java-1-abcdef01": Znode(b"{}", 7), "/kiel/groups/g/members/w:1": Znode(b"", 8)},
        "g_java-1-abcdef01, w:1 (under /consumers/g/ids and /kiel/groups/g/members)",
    ),
    "unreadable": ({**WELL, "/kiel-groups/g/config": Znode(b"{")}, "/kiel-groups/g/config: not JSON"),
    "refused": (
        {**WELL, "/kiel-groups/g/config": config(allocator="stiky")},
        "config is refused: /kiel-groups/g/config: allocator: there is no allocator 'stiky'",
    ),
    "misspelt": (
        {**WELL, "/kiel-groups/g/config": config(debonce={"quiet_ms": 0})},
        "config: field 'debonce' means nothing here; did you mean 'debounce'?",
    ),
    "unconsumed": (
        {
            "/consumers/g/ids": Znode(),
            **{path: znode for path, znode in WELL.items() if path.startswith("/consumers/g/offsets/")},
        },
        "the group has no members; its lag is 6, in 3 partitions",
    ),
    "leaderless": (
        without("/kiel-groups/g/election/ffff-n_0000000001", "/kiel-groups/g/election/aaaa-n_0000000002"),
        "no member is a candidate in the election",
    ),
    "orphans": (
        {**WELL, "/consumers/g/owners/t/1": Znode(b"g_host-9-dead-0")},
        "1 partition is owned by g_host-9-dead, which is no longer a member: t:1",
    ),
    "wrongly-owned": (
        {**WELL, "/consumers/g/owners/t/1": Znode(f"{B}-0".encode())},
        "1 partition is owned by bbbb, but assigned to aaaa: t:1",
    ),
    "unowned": (
        without("/consumers/g/owners/t/0", "/consumers/g/owners/t/1"),
        "2 partitions have no owner: t:0, t:1, to be claimed by aaaa",
    ),
    "unopened": (
        {
            **without("/consumers/g/offsets/t/1", "/consumers/g/offsets/t/2"),
            "/consumers/g/owners/t/1": Znode(f"{A}-0".encode(), 0xAAAA, created_ms=LATER_MS - UNOPENED_MS),
            "/consumers/g/owners/t/2": Znode(f"{B}-0".encode(), 0xBBBB, created_ms=LATER_MS - UNOPENED_MS + 1),
        },
        "1 partition has been claimed for up to 30 s, and no offset has been stored since: t:1;",
    ),
    "unassigned": (
        {**WELL, "/brokers/topics/t": Znode(b'{"partitions":{"0":[0],"1":[0],"2":[0],"3":[0]}}')},
        "1 partition is assigned to no member: t:3",
    ),
    "unplanned": (without("/kiel-groups/g/allocation"), "no plan has been published yet"),
    "publishing": (
        {**WELL, "/kiel-groups/g/allocation": plan(state="publishing")},
        "generation 4 is published only in part",
    ),
    "fallback": (
        {**WELL, "/kiel-groups/g/allocation": plan(fallback="the allocator raised; round robin instead")},
        "the allocator raised; round robin instead",
    ),
    "beyond-end": (
        {**WELL, "/consumers/g/offsets/t/1": Znode(b"13")},
        "1 committed offset is beyond the end of the log: t:1",
    ),
    "missing-topic": (without("/brokers/topics/t"), "1 subscribed topic does not exist: t"),
    "closed": (
        {**without(f"/kiel-groups/g/members/{A}"), "/kiel-groups/g/members": Znode(closed=True)},
        "an ACL denies reading 1 znode: /kiel-groups/g/members",
    ),
}


def findings(znodes: Snapshot, now_ms: int = LATER_MS) -> tuple[Finding, ...]:
    return check_group(view_group("g", znodes, LOG_ENDS), now_ms)


def drawn(
    view: GroupView, found: tuple[Finding, ...] = (), width: int = 80, lag_problem: str = "", generations: int = 0
) -> str:
    console = Console(file=io.StringIO(), width=width)
    for part in group_report(
        view, found, place="z:2181/x", lag_problem=lag_problem, now_ms=LATER_MS, generations=generations
    ):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def outlined(views: list[GroupView], width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(groups_table(views, with_lag=True))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_nothing_is_wrong_with_a_healthy_group() -> None:
    """No rule fires without a reason."""
    assert findings(WELL) == ()
    assert view_group("g", WELL, LOG_ENDS).state == "settled"


@pytest.mark.parametrize("kind", WRONG)
def test_each_wrong_is_found_and_named(kind: str) -> None:
    """One finding of its kind, which says whom and what it is about; a person reads it before anything else."""
    znodes, said = WRONG[kind]
    found = [finding for finding in findings(znodes) if finding.kind == kind]
    assert len(found) == 1
    assert said in found[0].text
    lines = drawn(view_group("g", znodes, LOG_ENDS), tuple(found)).splitlines()
    assert lines[0] == "group g in ZooKeeper at z:2181/x"
    assert lines[2].startswith(("wrong", "settling"))


@pytest.mark.parametrize("kind", ["wrongly-owned", "unowned", "unassigned", "publishing"])
def test_a_young_plan_is_given_time(kind: str) -> None:
    """What a rebalance looks like passes by itself, until it has lasted too long."""
    znodes, _ = WRONG[kind]
    young = [finding.passing for finding in findings(znodes, PLANNED_MS + 500) if finding.kind == kind]
    old = [finding.passing for finding in findings(znodes, LATER_MS) if finding.kind == kind]
    assert (young, old) == ([True], [False])


def test_a_claim_whose_offset_is_garbage_was_opened() -> None:
    """The owner writes over it with its next commit; that it is unreadable is another finding."""
    garbled = {**WELL, "/consumers/g/offsets/t/1": Znode(b"garbage", modified_ms=PLANNED_MS)}
    garbled["/consumers/g/owners/t/1"] = Znode(f"{A}-0".encode(), 0xAAAA, created_ms=PLANNED_MS)
    assert [finding.kind for finding in findings(garbled, PLANNED_MS + 2 * UNOPENED_MS)] == ["unreadable"]


@pytest.mark.parametrize(("written", "kinds"), [(6, ["unopened"]), (8, [])], ids=["before", "after"])
def test_an_offset_that_is_older_than_the_claim_opens_nothing(written: int, kinds: list[str]) -> None:
    """As where a topic was deleted and created again, and has no leader: an owner that opens a claim rewrites it."""
    claimed = {
        **WELL,
        "/consumers/g/owners/t/1": Znode(f"{A}-0".encode(), 0xAAAA, created_ms=PLANNED_MS, czxid=7),
        "/consumers/g/offsets/t/1": Znode(b"10", modified_ms=PLANNED_MS, czxid=1, mzxid=written),
    }
    found = findings(claimed, PLANNED_MS + UNOPENED_MS)
    assert [finding.kind for finding in found] == kinds
    assert all(finding.partitions == (PARTITIONS[1],) for finding in found)


def test_static_members_are_known_by_their_slots() -> None:
    """The slice of an instance counts for the member it is meant for; one that went keeps its share for a while."""
    slot = f"/kiel-groups/g/allocation/{B}"
    info = MemberInfo(member_id=B, session_timeout_ms=6_000, subscription=("t",), instance_id="two", started_at_ms=1)
    static = {
        **without(slot),
        f"/kiel-groups/g/members/{B}": Znode(info.encode(), 0xBBBB),
        "/kiel-groups/g/allocation/two": Znode(MemberAssignment(4, B, frozenset(PARTITIONS[2:])).encode()),
    }
    assert findings(static) == ()
    gone = {path: znode for path, znode in static.items() if B not in path and path != "/consumers/g/owners/t/2"}
    kept = MemberAssignment(4, B, frozenset(PARTITIONS[2:]), away_since_ms=LATER_MS - 20_000)
    (found,) = findings({**gone, "/kiel-groups/g/allocation/two": Znode(kept.encode())})
    assert (found.kind, found.passing) == ("away", True)
    assert found.text == "1 partition is reserved for instance two, which has been away for 20 s: t:2"


def test_what_will_not_pass_is_said_first() -> None:
    """Among several findings, those that need somebody stand on top."""
    znodes = {**WRONG["unowned"][0], **{path: WRONG["foreign"][0][path] for path in ("/kiel/groups/g/members/w:1",)}}
    assert [finding.passing for finding in findings(znodes, PLANNED_MS)] == [False, True]


def test_a_group_of_others_is_not_wrong() -> None:
    """Java consumers by themselves are a group like any other."""
    znodes = {"/consumers/g/ids/g_java-1-abcdef01": Znode(b"{}", 7)}
    view = view_group("g", znodes)
    assert (view.state, findings(znodes)) == ("foreign", ())
    assert "g_java-1-abcdef01" in drawn(view)


@pytest.mark.parametrize(
    ("state", "znodes"),
    [
        ("empty", {"/kiel-groups/g/config": config()}),
        ("memberless", {}),
        ("moving", WRONG["unowned"][0]),
        ("moving", WRONG["unplanned"][0]),
        ("publishing", WRONG["publishing"][0]),
    ],
)
def test_states(state: str, znodes: Snapshot) -> None:
    """One word for the whole group."""
    assert view_group("g", znodes).state == state


def test_a_report_shows_members_owners_and_lag_within_80_columns() -> None:
    """Sessions stand for members; what moves shows both ends; a number that is not known is a question mark."""
    znodes = {**WRONG["wrongly-owned"][0], "/consumers/g/ids/stranger": Znode(b"", 3)}
    view = view_group("g", znodes, LOG_ENDS)
    text = drawn(view, check_group(view, LATER_MS))
    for said in ("aaaa leads", "1 → 2", "2 → 1", "bbbb → aaaa", "topic t", "10 s ago", "stranger", "round_robin"):
        assert said in text
    assert max(map(len, text.splitlines())) <= 80
    blind = drawn(view_group("g", WELL), lag_problem="no broker answered")
    assert "lag         ? (not fully known: no broker answered)" in blind


def test_without_brokers_that_is_said_first() -> None:
    """Whatever else is wrong follows from it, or matters less."""
    view = view_group("g", WRONG["foreign"][0]).with_log_ends({}, brokers=0)
    first, *others = check_group(view, LATER_MS)
    assert (first.kind, first.passing, [finding.kind for finding in others]) == ("brokerless", False, ["foreign"])
    assert first.text.startswith("no broker is registered")


@pytest.mark.parametrize("log_ends", [dict.fromkeys(PARTITIONS, 10), {}], ids=["no lag", "unknown lag"])
def test_a_group_at_rest_is_not_wrong(log_ends: dict[TopicPartition, int]) -> None:
    """Nobody consumes, and there is nothing to consume as far as anybody knows; nor where others consume it."""
    at_rest = WRONG["unconsumed"][0]
    assert check_group(view_group("g", at_rest, log_ends), LATER_MS) == ()
    java = {**at_rest, "/consumers/g/ids/g_java-1-abcdef01": Znode(b"{}", 7)}
    assert check_group(view_group("g", java, LOG_ENDS), LATER_MS) == ()


@pytest.mark.parametrize(
    ("group", "said"),
    [
        ("kiel-spark-0a1b", "committed by a Spark query or an archive, which is not a member"),
        ("lake", "committed by another program, such as a Spark query or an archive, which is not a member"),
    ],
)
def test_a_group_of_a_spark_query_is_known_as_that(group: str, said: str) -> None:
    """No member has ever joined: that nobody consumes is right, and a member would take over from the query."""
    view = view_group(group, {f"/consumers/{group}/offsets/t/0": Znode(b"10")}, LOG_ENDS)
    assert (view.state, check_group(view, LATER_MS)) == ("memberless", ())
    assert said in drawn(view, width=200)


def test_what_the_group_follows_is_shown() -> None:
    """What people have set stands in the report and in JSON; a drained id that never was a member's is marked."""
    tuned = config(
        allocator="sticky",
        debounce={"quiet_ms": 0},
        static_grace_ms=5_000,
        drained=[A, "typo", "g_host-1400000000000-dead"],
    )
    view = view_group("g", {**WELL, "/kiel-groups/g/config": tuned}, LOG_ENDS)
    text = " ".join(drawn(view, width=200).split())
    assert (
        "config allocator sticky, debounce quiet_ms 0, static_grace_ms 5,000, "
        f"drained {A}, drained typo (not a member)" in text
    )
    assert "g_host-1400000000000-dead" not in text
    assert group_document(view, (), lag_problem="")["follows"] == {
        "allocator": "sticky",
        "debounce": {"quiet_ms": 0},
        "static_grace_ms": 5_000,
        "drained": [A, "g_host-1400000000000-dead", "typo"],
        "drained_strangers": ["typo"],
    }
    refused = view_group("g", WRONG["refused"][0])
    assert group_document(refused, (), lag_problem="")["follows"] is None
    assert "config refused, see above" in " ".join(drawn(refused).split())


def test_weights_are_told_of() -> None:
    """How many there are; a znode that holds none is a finding."""
    weights = encode_weights({PARTITIONS[0]: 3, PARTITIONS[1]: 1})
    view = view_group("g", {**WELL, "/kiel-groups/g/weights": Znode(weights)}, LOG_ENDS)
    assert "weights of 2 partitions; 'kiel-groups weights show g' shows them" in " ".join(
        drawn(view, width=200).split()
    )
    assert group_document(view, (), lag_problem="")["weights"] == 2
    broken = view_group("g", {**WELL, "/kiel-groups/g/weights": Znode(b"{}")}, LOG_ENDS)
    assert [finding.kind for finding in check_group(broken, LATER_MS)] == ["unreadable"]


def test_lag_that_is_not_known_is_not_shown_as_none() -> None:
    """A member's is a question mark, or at least so much; partitions without an offset are counted by themselves."""
    znodes = without("/consumers/g/offsets/t/1", "/consumers/g/offsets/t/2")
    view = view_group("g", znodes, LOG_ENDS)
    assert [member.lag for member in view.members] == [2, None]
    text = drawn(view)
    rows = [line.split() for line in text.splitlines()]
    assert [row[-2:] for row in rows if row[:1] in (["aaaa"], ["bbbb"])] == [["≥", "2"], ["1", "?"]]
    assert "lag         ≥ 2; without a committed offset: 2 partitions" in text
    document = group_document(view, (), lag_problem="")
    assert [(each["lag"], each["partitions_of_unknown_lag"]) for each in document["members"]] == [(2, 1), (None, 1)]
    assert document["partitions_of_unknown_lag"] == 2


@pytest.mark.parametrize("width", [30, 40, 60])
def test_a_narrow_terminal_loses_nothing(width: int) -> None:
    """What does not fit is folded: every character of every column is there, and no line is too long."""
    view = view_group("g", WRONG["wrongly-owned"][0], LOG_ENDS)

    def characters(text: str) -> Counter[str]:
        return Counter(character for character in text if character.isalnum())

    narrow = drawn(view, check_group(view, LATER_MS), width)
    assert max(map(len, narrow.splitlines())) <= width
    assert characters(narrow) == characters(drawn(view, check_group(view, LATER_MS), 300))
    listing, unbounded = (outlined([view], at) for at in (width, 300))
    assert max(map(len, listing.splitlines())) <= width
    assert characters(listing) == characters(unbounded)


def test_partitions_that_are_not_listed_are_counted() -> None:
    """All, those that a finding is about or whose lag is unknown, or none; the lag of the rest is not lost."""
    view = view_group("g", {**WRONG["orphans"][0], "/consumers/g/offsets/t/2": Znode(b"?")}, LOG_ENDS)
    found = check_group(view, LATER_MS)

    def listed(which: Listed) -> str:
        console = Console(file=io.StringIO(), width=80)
        for part in group_report(view, found, place="z", lag_problem="", now_ms=LATER_MS, listed=which):
            console.print(part)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue().rpartition("topic t")[2]

    rows = [line.split() for line in listed("wrong").splitlines()]
    assert [row[0] for row in rows if row and row[0].isdigit()] == ["1", "2"]
    assert "not listed" not in listed("all")
    assert listed("wrong").startswith(": 1 of 3 partitions are not listed; lag of all: ≥ 4\n")
    assert listed(1).startswith(": 2 of 3 partitions are not listed")
    assert (listed(2), listed(3)) == (listed("wrong"), listed("all"))
    assert listed("none") == ": 3 of 3 partitions are not listed; lag of all: ≥ 4\n"


def test_a_dedicated_allocator_is_told_from_members() -> None:
    """The leader that is no member is shown as what it is, and spare ones are counted."""
    znodes = {
        **WELL,
        "/kiel-groups/g/election/0000-n_0000000000": Znode(b"g_host-0-cccc"),
        "/kiel-groups/g/election/0001-n_0000000003": Znode(b"g_host-0-dddd"),
    }
    assert "g_host-0-cccc, an allocator process; 1 spare allocator process" in drawn(view_group("g", znodes))


def test_documents_hold_what_programs_ask_for() -> None:
    """JSON with full ids, null for what is unknown, and every finding with its kind."""
    view = view_group("g", WRONG["orphans"][0], {})
    document = json.loads(json.dumps(group_document(view, check_group(view, LATER_MS), lag_problem="no broker")))
    assert (document["lag"], document["lag_problem"]) == (None, "no broker")
    assert [finding["kind"] for finding in document["wrong"]] == ["orphans"]
    assert document["wrong"][0]["partitions"] == ["t:1"]
    assert [each["id"] for each in document["members"]] == [A, B]
    assert [each["owner"] for each in document["partitions"]] == [A, "g_host-9-dead", B]
    assert [each["target"] for each in document["partitions"]] == [A, A, B]
    assert document["allocation"]["generation"] == 4
    assert outline_document(view, with_lag=True)["lag"] is None


def test_an_outline_says_what_can_be_told_without_owners() -> None:
    """A line a group: how many members, of which kind, and what is published."""
    java = {"/consumers/j/ids/j_java-1-abcdef01": Znode(b"{}", 7)}
    text = outlined([view_group("g", WELL, LOG_ENDS), view_group("j", java)], 80)
    rows = [line.split() for line in text.splitlines()]
    assert ["g", "2", "4", "done", "6"] in rows
    assert ["j", "0", "1", "foreign", "0"] in rows


def test_of_a_closed_group_nothing_is_said_that_is_not_known() -> None:
    """A question mark for what stands where nobody may look; what is missing there is no reason for a finding."""
    view = view_group("g", {"/kiel-groups/g": Znode(closed=True), "/consumers/g/offsets": Znode(closed=True)})
    (finding,) = check_group(view, LATER_MS)
    assert (finding.kind, finding.passing, view.state) == ("closed", False, "unreadable")
    assert ["g", "?", "?", "unreadable", "?"] in [line.split() for line in outlined([view], 80).splitlines()]
    outline = outline_document(view, with_lag=True)
    assert (outline["members"], outline["lag"], outline["closed"]) == (None, None, list(view.closed))
    text = " ".join(drawn(view, (finding,)).split())
    assert "state unreadable: 0 of 0 readable partitions are owned leader ? lag ?" in text


def test_the_past_is_told_newest_first_as_far_as_asked() -> None:
    """Why there was each generation, and what it did; what is no generation is passed over, garbage is named."""
    past = [
        HistoryEntry(
            generation=number,
            cause=f"join of m{number}",
            leader=A,
            moved=number,
            members=number,
            partitions=3,
            took_ms=12,
            created_at_ms=LATER_MS - 1000 * (5 - number),
        )
        for number in (2, 3, 4)
    ]
    folder = "/kiel-groups/g/history"
    entries = {f"{folder}/{entry.generation:010d}": Znode(entry.encode()) for entry in past}
    view = view_group("g", {**WELL, **entries, f"{folder}/note": Znode(b"?"), f"{folder}/0000000001": Znode(b"?")})
    assert view.history == tuple(reversed(past))
    assert [text for text in view.unreadable if folder in text]
    document = group_document(view, (), lag_problem="", generations=2)
    assert [each["generation"] for each in document["history"]] == [4, 3]
    assert group_document(view, (), lag_problem="")["history"] == []
    rows = [line.split(maxsplit=8) for line in drawn(view, generations=2).splitlines()]
    assert ["4", "1", "s", "ago", "4", "4", "12", "ms", "join of m4"] in [
        [*row[:8], row[8].strip()] for row in rows if len(row) > 8
    ]
    assert "join of m2" not in drawn(view, generations=2)


@pytest.mark.parametrize(
    ("ms", "said"), [(None, ""), (0, "0 s ago"), (119_000, "119 s ago"), (120_000, "2 min ago"), (7_200_000, "2 h ago")]
)
def test_ages(ms: int | None, said: str) -> None:
    """Seconds until they are two of the next unit; never in the future."""
    assert ago(None if ms is None else LATER_MS - ms, LATER_MS) == said
    assert ago(LATER_MS + 5_000, LATER_MS) == "0 s ago"
