"""The report, the list and the documents of groups that brokers coordinate, and the report of a lag."""

from __future__ import annotations

import io
from collections import Counter

import pytest
from rich.console import Console

from kiel_groups.ops.views.checks import check_group
from kiel_groups.ops.views.documents import group_document, lag_document, outline_document
from kiel_groups.ops.views.progress import ProgressTracker
from kiel_groups.ops.views.report import lag_report
from tests.helpers.coordinated_groups import PARTITIONS, A, B, group_view, listing_text, member, report_text

pytestmark = pytest.mark.unit


def test_a_report_fits_80_columns() -> None:
    """It shows the state, the coordinator, the members by the end of their ids, and each partition with its owner."""
    view = group_view((member(A, *PARTITIONS[:2]), member(B)), offsets=dict.fromkeys(PARTITIONS[1:], 10))
    text = report_text(view, (*ProgressTracker().take(view, 1), *check_group(view, 1)))
    for expected in (
        "group g at brokers b:9092",
        "settling  1 assigned partition has records, but no committed offset: t:0, of",
        "wrong     1 partition is assigned to no member: t:2",
        "→ the strategy 'range' divides each topic apart",
        "state        stable: 2 of 3 partitions are assigned",
        "coordinator  broker 1 at 10.0.0.1:9092",
        "lag          ≥ 4; without a committed offset: 1 partition",
    ):
        assert expected in text
    rows = [line.split() for line in text.splitlines()]
    assert ["aaaa", "kiel-groups", "10.0.0.7", "t", "2", "≥", "2"] in rows
    assert ["0", "?", "12", "?", "aaaa"] in rows
    assert ["2", "10", "12", "2", "none"] in rows
    assert max(map(len, text.splitlines())) <= 80


def test_members_without_a_plan_have_no_planned_share() -> None:
    """Brokers coordinate without a plan, so the page of a group shows only how many partitions a member owns."""
    assert [each.share for each in group_view((member(A, *PARTITIONS), member(B))).members] == ["3", "0"]


def test_a_rebalance_and_other_types_are_explained() -> None:
    """What a coordinator does not show is a question mark; a group of another type says why it has no partitions."""
    text = report_text(group_view(state="PreparingRebalance"))
    assert "rebalancing (PreparingRebalance): brokers do not say which member" in text
    assert ["aaaa", "kiel-groups", "10.0.0.7", "?", "?", "?"] in [line.split() for line in text.splitlines()]
    other = report_text(group_view((member(A, metadata=b""),), protocol_type="connect", offsets={}))
    assert "type         connect: not a group of consumers; its members own no partitions" in other
    assert "lag  " not in other.partition("members")[0]
    memberless = report_text(group_view((), state="Empty", protocol_type=""))
    assert "memberless: no member has ever joined; another program, or 'offsets" in memberless


@pytest.mark.parametrize("width", [30, 40, 60])
def test_a_narrow_report_has_every_character(width: int) -> None:
    """Cells that do not fit are folded, and no line is too long."""
    view = group_view((member(A, *PARTITIONS, topics=("t", "a-topic-with-a-long-name", "u")), member(B)))
    found = check_group(view, 1)

    def characters(text: str) -> Counter[str]:
        return Counter(character for character in text if character.isalnum())

    for text_at in (lambda at: report_text(view, found, at), lambda at: listing_text([view], at)):
        assert max(map(len, text_at(width).splitlines())) <= width
        assert characters(text_at(width)) == characters(text_at(300))


def test_documents_have_null_for_what_is_unknown() -> None:
    """JSON has full ids, and null where the coordinator or the brokers did not say."""
    document = group_document(group_view(log_ends={}), (), lag_problem="no broker answered")
    assert (document["lag"], document["partitions_of_unknown_lag"], document["lag_problem"]) == (
        None,
        3,
        "no broker answered",
    )
    assert document["partitions"][2] == {
        "topic": "t",
        "partition": 2,
        "committed": 10,
        "log_end": None,
        "lag": None,
        "stores": None,
        "owner": B,
    }
    assert document["members"][0]["owned"] == ["t:0", "t:1"]
    rebalancing = group_document(group_view(state="AwaitingSync"), (), lag_problem="")
    assert (rebalancing["state"], rebalancing["broker_state"]) == ("rebalancing", "AwaitingSync")
    assert (rebalancing["members"][0]["owned"], rebalancing["members"][0]["subscription"]) == (None, None)
    assert outline_document(group_view(), with_lag=True) == {
        "group": "g",
        "type": "consumer",
        "members": 2,
        "state": "stable",
        "coordinator": "broker 1 at 10.0.0.1:9092",
        "lag": 6,
    }


def test_a_lag_is_reported_by_partition_and_in_all() -> None:
    """The last line has the lag of the group; unknown parts make it a lower bound."""
    partitions = group_view(offsets=dict.fromkeys(PARTITIONS[1:], 10)).partitions
    console = Console(file=io.StringIO(), width=80)
    for part in lag_report("g", partitions, ""):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert ["0", "?", "12", "?"] in [line.split() for line in lines]
    assert lines[-1] == "lag of group g: ≥ 4, in 3 partitions; without a committed offset: 1 partition"
    document = lag_document("g", partitions, "")
    assert (document["lag"], document["partitions_of_unknown_lag"], document["lag_problem"]) == (4, 1, None)
    assert document["partitions"][1] == {
        "topic": "t",
        "partition": 1,
        "committed": 10,
        "log_end": 12,
        "lag": 2,
        "stores": None,
    }
