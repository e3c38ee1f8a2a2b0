"""Problems that only successive views of a group show."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kiel_groups.cli.app import run
from kiel_groups.cli.commands import describe
from kiel_groups.ops.broker_reader import BrokerGroups
from kiel_groups.ops.loaded_groups import LoadedGroups
from kiel_groups.ops.views.group_view import GroupView
from kiel_groups.ops.views.progress import STUCK_MS, WATCHED_MS, ProgressTracker
from tests.helpers.coordinated_groups import LOG_ENDS, PARTITIONS, A, group_view, member

pytestmark = pytest.mark.unit

NOW_MS = 1_700_000_000_000
LATER_MS = NOW_MS + WATCHED_MS

REBALANCING = group_view(state="PreparingRebalance")
UNCOMMITTED = group_view(offsets=dict.fromkeys(PARTITIONS[1:], 12))


def kinds(progress: ProgressTracker, view: GroupView, now_ms: int) -> dict[str, bool]:
    """Add a view, and return the kinds of the findings, each with whether it passes by itself."""
    return {finding.kind: finding.passing for finding in progress.take(view, now_ms)}


@pytest.mark.parametrize(("view", "kind"), [(REBALANCING, "rebalancing"), (UNCOMMITTED, "missing-offset")])
def test_what_should_pass_is_wrong_after_a_while(view: GroupView, kind: str) -> None:
    """A rebalance and a missing offset settle at first; a further look shows that they do not."""
    progress = ProgressTracker()
    assert kinds(progress, view, NOW_MS) == {kind: True}
    assert progress.suspicion(NOW_MS)
    assert kinds(progress, view, LATER_MS - 1) == {kind: True}
    assert kinds(progress, view, LATER_MS) == {kind: False}
    healthy = group_view(offsets=LOG_ENDS)
    assert (kinds(progress, healthy, LATER_MS), progress.suspicion(NOW_MS)) == ({}, "")
    assert kinds(progress, view, LATER_MS) == {kind: True}


def test_partitions_without_commits_are_stuck() -> None:
    """A lag without any commit is shown after 15 seconds, and is wrong after five minutes."""
    progress = ProgressTracker()
    assert kinds(progress, group_view(), NOW_MS) == {}
    assert progress.suspicion(NOW_MS) == ""
    (finding,) = progress.take(group_view(), LATER_MS)
    assert (finding.kind, finding.passing, finding.partitions) == ("stuck", True, tuple(PARTITIONS))
    assert finding.text.startswith(
        "3 partitions make no progress: lag 6, and no commit in 15 s: t:0, t:1, t:2, of aaaa"
    )
    assert kinds(progress, group_view(), NOW_MS + STUCK_MS) == {"stuck": False}


@pytest.mark.parametrize(
    "second",
    [
        group_view(offsets=dict.fromkeys(PARTITIONS, 11)),
        group_view(offsets=LOG_ENDS),
        group_view((), state="Empty"),
        group_view((member(f"{A}x", *PARTITIONS),)),
    ],
    ids=["a commit", "no lag", "no owner", "another owner"],
)
def test_progress_starts_the_time_again(second: GroupView) -> None:
    """A partition is not stuck if it has a new offset, a new owner, no owner or no lag."""
    progress = ProgressTracker()
    progress.take(group_view(), NOW_MS)
    assert "stuck" not in kinds(progress, second, LATER_MS)


def test_a_partition_without_records_needs_no_offset() -> None:
    """A member that starts at the end of an empty log has nothing to commit."""
    assert kinds(ProgressTracker(), group_view(offsets={}, log_ends=dict.fromkeys(PARTITIONS, 0)), NOW_MS) == {}


@pytest.mark.parametrize(
    ("looks", "status"),
    [([group_view()], 0), ([REBALANCING, REBALANCING], 1), ([REBALANCING, group_view()], 0)],
    ids=["well", "still rebalancing", "rebalanced"],
)
def test_a_check_looks_twice_at_a_rebalance(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    looks: list[GroupView],
    status: int,
) -> None:
    """``--check`` waits for a rebalance, and fails if the group still rebalances 16 seconds later."""
    times = [NOW_MS]
    loads: Iterator[GroupView] = iter(looks)

    def load(*_: object, **__: object) -> LoadedGroups:
        return LoadedGroups((next(loads),), brokers=1, seen_ms=times[-1])

    monkeypatch.setattr(BrokerGroups, "load", load)
    monkeypatch.setattr(describe.time, "sleep", lambda seconds: times.append(NOW_MS + round(seconds * 1000)))
    words = ["describe", "g", "--coordination=brokers", "--brokers=b", "--check", "--json"]
    assert run(words) == status
    out, err = capsys.readouterr()
    assert json.loads(out)["group"] == "g"
    assert err == ("info: the group rebalances; looking again in 16 s\n" if len(looks) == 2 else "")
