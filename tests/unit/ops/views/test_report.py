"""The report and the JSON document of a group."""

from __future__ import annotations

import io
import json
import time
from collections import Counter
from operator import itemgetter

import pytest
from rich.console import Console

from kiel_groups.group.znodes.contents import Znode
from kiel_groups.group.znodes.group_settings import HistoryEntry, encode_weights
from kiel_groups.ops.views.checks import check_group
from kiel_groups.ops.views.documents import group_document, outline_document
from kiel_groups.ops.views.report import Column, Listed, Listing, ago, group_report, report_table
from kiel_groups.ops.views.znodes import view_group
from tests.helpers.group_snapshots import (
    HEALTHY,
    LATER_MS,
    LOG_ENDS,
    PARTITIONS,
    PROBLEMS,
    A,
    B,
    config,
    listing_text,
    report_text,
    without,
)

pytestmark = pytest.mark.unit


def test_a_report_shows_members_owners_and_lag_within_80_columns() -> None:
    """
    A report fits 80 columns. It shows members by session, moving partitions with both owners, and unknown numbers as
    question marks.
    """
    znodes = {**PROBLEMS["wrongly-owned"][0], "/consumers/g/ids/stranger": Znode(b"", 3)}
    view = view_group("g", znodes, LOG_ENDS)
    text = report_text(view, check_group(view, LATER_MS))
    for expected in ("aaaa leads", "1 → 2", "2 → 1", "bbbb → aaaa", "topic t", "10 s ago", "stranger", "round_robin"):
        assert expected in text
    assert max(map(len, text.splitlines())) <= 80
    blind = report_text(view_group("g", HEALTHY), lag_problem="no broker answered")
    assert "lag         ? (not fully known: no broker answered)" in blind


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("kiel-spark-0a1b", "committed by a Spark query or an archive, which is not a member"),
        ("lake", "set by 'offsets copy', or committed by another program, such as a Spark query or an archive, which"),
    ],
)
def test_a_memberless_group_of_a_spark_query_is_described(group: str, expected: str) -> None:
    """
    The report says that another program commits offsets for a group without members. A Spark query's group never has
    members, so their absence is no finding.
    """
    view = view_group(group, {f"/consumers/{group}/offsets/t/0": Znode(b"10")}, LOG_ENDS)
    assert (view.state, check_group(view, LATER_MS)) == ("memberless", ())
    assert expected in report_text(view, width=200)


def test_the_dynamic_settings_are_shown() -> None:
    """The report and the document have the dynamic settings. A drained id that was never a member's is marked."""
    tuned = config(
        allocator="sticky",
        debounce={"quiet_ms": 0},
        static_grace_ms=5_000,
        drained=[A, "typo", "g_host-1400000000000-dead"],
        broker_racks={"2": "west", "1": "east"},
    )
    view = view_group("g", {**HEALTHY, "/kiel-groups/g/config": tuned}, LOG_ENDS)
    text = " ".join(report_text(view, width=200).split())
    assert (
        "config allocator sticky, static_grace_ms 5,000, debounce.quiet_ms 0, "
        f"broker 1 in rack east, broker 2 in rack west, drained {A}, drained typo (not a member)" in text
    )
    assert "g_host-1400000000000-dead" not in text
    assert group_document(view, (), lag_problem="")["follows"] == {
        "allocator": "sticky",
        "debounce": {"quiet_ms": 0},
        "static_grace_ms": 5_000,
        "broker_racks": {"1": "east", "2": "west"},
        "drained": ["g_host-1400000000000-dead", A, "typo"],
        "drained_strangers": ["typo"],
    }
    refused = view_group("g", PROBLEMS["refused"][0])
    assert group_document(refused, (), lag_problem="")["follows"] is None
    assert "config refused, see above" in " ".join(report_text(refused).split())


def test_weights_are_counted() -> None:
    """The report and the document count the weights. Unreadable weights are a finding."""
    weights = encode_weights({PARTITIONS[0]: 3, PARTITIONS[1]: 1})
    view = view_group("g", {**HEALTHY, "/kiel-groups/g/weights": Znode(weights)}, LOG_ENDS)
    assert "weights of 2 partitions; 'kiel-groups weights show g' shows them" in " ".join(
        report_text(view, width=200).split()
    )
    assert group_document(view, (), lag_problem="")["weights"] == 2
    broken = view_group("g", {**HEALTHY, "/kiel-groups/g/weights": Znode(b"{}")}, LOG_ENDS)
    assert [finding.kind for finding in check_group(broken, LATER_MS)] == ["unreadable"]


def test_unknown_lag_is_shown_as_unknown() -> None:
    """
    Unknown lag is shown as "?", or as a lower bound if only some partitions have a known lag. Partitions without an
    offset are counted separately.
    """
    znodes = without("/consumers/g/offsets/t/1", "/consumers/g/offsets/t/2")
    view = view_group("g", znodes, LOG_ENDS)
    assert [member.lag for member in view.members] == [2, None]
    text = report_text(view)
    rows = [line.split() for line in text.splitlines()]
    assert [row[-2:] for row in rows if row[:1] in (["aaaa"], ["bbbb"])] == [["≥", "2"], ["1", "?"]]
    assert "lag         ≥ 2; without a committed offset: 2 partitions" in text
    document = group_document(view, (), lag_problem="")
    assert [(each["lag"], each["partitions_of_unknown_lag"]) for each in document["members"]] == [(2, 1), (None, 1)]
    assert document["partitions_of_unknown_lag"] == 2


@pytest.mark.parametrize("width", [30, 40, 60])
def test_a_narrow_report_has_every_character(width: int) -> None:
    """A narrow report has every character of a wide one: cells that do not fit are folded, and no line is too long."""
    view = view_group("g", PROBLEMS["wrongly-owned"][0], LOG_ENDS)

    def characters(text: str) -> Counter[str]:
        return Counter(character for character in text if character.isalnum())

    narrow = report_text(view, check_group(view, LATER_MS), width)
    assert max(map(len, narrow.splitlines())) <= width
    assert characters(narrow) == characters(report_text(view, check_group(view, LATER_MS), 300))
    listing, unbounded = (listing_text([view], at) for at in (width, 300))
    assert max(map(len, listing.splitlines())) <= width
    left_out = characters("foreign") if width < 48 else Counter()
    assert characters(listing) == characters(unbounded) - left_out


def test_long_names_take_the_place_of_empty_columns() -> None:
    """The list of groups leaves out columns without a text where it is too wide, and only then folds names."""
    views = [view_group(f"{'long-name-' * 3}{number}", {}) for number in range(2)]
    wide, narrow = (listing_text(views, width) for width in (100, 64))
    assert "foreign" in wide
    assert "generation" in wide
    assert narrow.splitlines()[1].split() == ["group", "members", "state", "lag"]
    assert all(view.group in narrow for view in views)


def test_a_long_list_is_the_table_of_a_short_one_and_takes_little_time() -> None:
    """3,000 groups take a fraction of a second, and each of their lines is that of a rich table, characters aligned."""
    names = [f"{'ü世' * (number % 3)}{number}" for number in range(3_000)]
    columns = [("group", names), ("lag", ["1,234", ""] * 1_500)]
    console = Console(file=io.StringIO(), width=80)
    began_s = time.process_time()
    console.print(Listing(columns))
    assert time.process_time() - began_s < 1
    rows = list(zip(*(texts for _, texts in columns), strict=True))
    table = report_table([Column("group", itemgetter(0)), Column("lag", itemgetter(1), is_right=True)], rows)
    expected = Console(file=io.StringIO(), width=80)
    expected.print(table)
    assert isinstance(console.file, io.StringIO)
    assert isinstance(expected.file, io.StringIO)
    lines, rich_lines = (each.file.getvalue().splitlines() for each in (console, expected))
    assert [line.rstrip() for line in lines] == [line.rstrip() for line in rich_lines]


def test_partitions_that_are_not_listed_are_counted() -> None:
    """
    The report lists all partitions, some, or none. Partitions that are not listed are counted, and the total lag
    includes them.
    """
    view = view_group("g", {**PROBLEMS["orphans"][0], "/consumers/g/offsets/t/2": Znode(b"?")}, LOG_ENDS)
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


def test_allocator_processes_are_not_shown_as_members() -> None:
    """A leader that is no member is shown as an allocator process. Spare allocator processes are counted."""
    znodes = {
        **HEALTHY,
        "/kiel-groups/g/election/0000-n_0000000000": Znode(b"g_host-1700000000000-cccc"),
        "/kiel-groups/g/election/0001-n_0000000003": Znode(b"g_host-1700000000000-dddd"),
    }
    assert "g_host-1700000000000-cccc, an allocator process; 1 spare allocator process" in report_text(
        view_group("g", znodes), width=200
    )


def test_a_document_has_full_ids_and_all_findings() -> None:
    """The JSON document has full ids and all findings with their kinds. Unknown values are null."""
    view = view_group("g", PROBLEMS["orphans"][0], {})
    document = json.loads(json.dumps(group_document(view, check_group(view, LATER_MS), lag_problem="no broker")))
    assert (document["lag"], document["lag_problem"]) == (None, "no broker")
    assert [finding["kind"] for finding in document["wrong"]] == ["orphans"]
    assert document["wrong"][0]["partitions"] == ["t:1"]
    assert [each["id"] for each in document["members"]] == [A, B]
    assert [each["owner"] for each in document["partitions"]] == [A, "g_host-9-dead", B]
    assert [each["target"] for each in document["partitions"]] == [A, A, B]
    assert document["allocation"]["generation"] == 4
    assert outline_document(view, with_lag=True)["lag"] is None


def test_a_listing_has_a_row_for_each_group() -> None:
    """A listing has a row for each group, with the number of members of each kind, the generation, and the state."""
    java = {"/consumers/j/ids/j_java-1-abcdef01": Znode(b"{}", 7)}
    text = listing_text([view_group("g", HEALTHY, LOG_ENDS), view_group("j", java)], 80)
    rows = [line.split() for line in text.splitlines()]
    assert ["g", "2", "4", "done", "6"] in rows
    assert ["j", "0", "1", "foreign", "0"] in rows


def test_a_group_that_an_acl_hides_is_shown_as_unknown() -> None:
    """A group that an ACL hides is shown with question marks. Its only finding is about the ACL."""
    view = view_group("g", {"/kiel-groups/g": Znode(closed=True), "/consumers/g/offsets": Znode(closed=True)})
    (finding,) = check_group(view, LATER_MS)
    assert (finding.kind, finding.passing, view.state) == ("closed", False, "unreadable")
    assert ["g", "?", "?", "unreadable", "?"] in [line.split() for line in listing_text([view], 80).splitlines()]
    outline = outline_document(view, with_lag=True)
    assert (outline["members"], outline["lag"], outline["closed"]) == (None, None, list(view.closed))
    text = " ".join(report_text(view, (finding,)).split())
    assert "state unreadable: 0 of 0 readable partitions are owned leader ? lag ?" in text


def test_the_history_is_shown_newest_first() -> None:
    """
    The requested number of generations is shown, newest first. Znodes with other names are ignored, and unreadable
    entries are named.
    """
    entries = [
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
    znodes = {f"{folder}/{entry.generation:010d}": Znode(entry.encode()) for entry in entries}
    view = view_group("g", {**HEALTHY, **znodes, f"{folder}/note": Znode(b"?"), f"{folder}/0000000001": Znode(b"?")})
    assert view.history == tuple(reversed(entries))
    assert [each for each in view.unreadable if folder in each.text]
    document = group_document(view, (), lag_problem="", generations=2)
    assert [each["generation"] for each in document["history"]] == [4, 3]
    assert group_document(view, (), lag_problem="")["history"] == []
    rows = [line.split() for line in report_text(view, generations=2).splitlines()]
    assert ["4", "2023-11-14", "22:13:29", "aaaa", "4", "4", "join", "of", "m4"] in rows
    assert "join of m2" not in report_text(view, generations=2)


@pytest.mark.parametrize(
    ("ms", "expected"),
    [(None, ""), (0, "0 s ago"), (119_000, "119 s ago"), (120_000, "2 min ago"), (7_200_000, "2 h ago")],
)
def test_ages(ms: int | None, expected: str) -> None:
    """
    An age is in seconds below 2 minutes, in minutes below 2 hours, and so on. A time in the future is shown as "0 s
    ago".
    """
    assert ago(None if ms is None else LATER_MS - ms, LATER_MS) == expected
    assert ago(LATER_MS + 5_000, LATER_MS) == "0 s ago"
