"""The report and the JSON document of a group."""

from __future__ import annotations

import io
import json
from collections import Counter

import pytest
from rich.console import Console

from kiel_groups.group.znodes.history import HistoryEntry
from kiel_groups.group.znodes.partition_weights import encode_weights
from kiel_groups.group.znodes.snapshot import Znode
from kiel_groups.ops.checks import check_group
from kiel_groups.ops.group_view import view_group
from kiel_groups.ops.json_documents import group_document, outline_document
from kiel_groups.ops.report import Listed, ago, group_report
from tests.helpers.group_snapshots import (
    LATER_MS,
    LOG_ENDS,
    PARTITIONS,
    WELL,
    WRONG,
    A,
    B,
    config,
    drawn,
    outlined,
    without,
)

pytestmark = pytest.mark.unit


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
