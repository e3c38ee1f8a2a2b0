"""
Compute the values that a group's web page shows, such as the cells of the grid of partitions, from the group's status.
This module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tornado.escape import to_basestring, xhtml_escape

from kiel_groups.model import MemberId, TopicPartition
from kiel_groups.ops.views.checks import Finding
from kiel_groups.ops.views.group_view import GroupView, MemberView, PartitionView, lag_of
from kiel_groups.ops.views.lag_trend import PROBLEMS, Trend, worst_verdict
from kiel_groups.ops.views.members import all_members
from kiel_groups.ops.views.report import ago
from kiel_groups.service.cluster_state import GroupStatus
from kiel_groups.wording import counted, some

#: The colours of owners, the heights of bars and the colours of lags in the style sheet.
_COLOURS, _BARS, _LEVELS = 8, 3, 4

#: How many partitions or members the page shows in one list or table. A browser skips those that are scrolled away.
_RUN = 100

#: With more partitions than these, all grids are in one area that scrolls. The same is true for tables of members.
_MOST_UNBOUNDED = 1_000

#: The most partitions of a problem, drained slots, and hosts that are named.
_MOST_NAMED, _MOST_DRAINED, _MOST_HOSTS = 500, 20, 200

#: How many partitions the text of a finding names.
_NAMED_IN_TEXT = 4

#: The verdicts on partitions that the grid marks.
_MARKED = PROBLEMS - {"unknown"}

#: The kinds of findings whose partitions have offsets that no member needs.
_NEEDLESS = ("orphan-offsets", "gone-offsets")

#: The width of the longest bar of a rebalance, in pixels.
_LONGEST_BAR = 60


class _Run(NamedTuple):
    """Successive partitions of a topic: the number of the first one, and the HTML of their cells."""

    start: int
    cells: str


class _Topic(NamedTuple):
    """A topic: its name, its facts as text, and its partitions. ``is_labelled`` is whether runs show their numbers."""

    name: str
    facts: str
    runs: Sequence[_Run]
    is_labelled: bool


class _Problem(NamedTuple):
    """
    A finding, and the text for how long it has been seen.

    ``partitions`` names its partitions, if the text of the finding leaves some out. ``offsets`` has the partitions
    whose offsets no member needs, as the action that deletes offsets takes them.
    """

    finding: Finding
    lasted: str
    partitions: str
    offsets: str


class _Rebalance(NamedTuple):
    """The duration of a rebalance as text, and as the width of a bar in pixels."""

    took: str
    width: int


def group_values(status: GroupStatus, now_ms: int, *, by_lag: bool) -> dict[str, Any]:
    """
    Return the values of the template ``group.html`` that depend on the group only.

    Args:
        status: The group.
        now_ms: The present time in epoch milliseconds.
        by_lag: Whether the partitions are coloured by their lag, and not by their owner.
    """
    view = status.view
    everyone = all_members(view)
    members = list(enumerate(everyone, 1))
    drained = frozenset[str]() if view.dynamic_config is None else view.dynamic_config.drained
    return {
        "status": status,
        "view": view,
        "by_lag": by_lag,
        "problems": [_problem(finding, status, now_ms) for finding in status.findings],
        "tables": [members[at : at + _RUN] for at in range(0, len(members), _RUN)],
        "drained": drained,
        "drained_away": some(sorted(drained - {member.slot for member in view.members}), _MOST_DRAINED),
        "drained_names": sorted(drained)[:_MOST_DRAINED],
        "hosts": sorted({member.host for member in view.members})[:_MOST_HOSTS],
        "topics": list(_topics(status, everyone, by_lag=by_lag)),
        "is_large": len(view.partitions) > _MOST_UNBOUNDED,
        "rebalances": list(zip(view.history, _rebalances(view), strict=True)),
        "lags": json.dumps(status.lags),
    }


def _problem(finding: Finding, status: GroupStatus, now_ms: int) -> _Problem:
    unowned = {each: status.unowned_since_ms[each] for each in finding.partitions if each in status.unowned_since_ms}
    since_ms = min(unowned.values(), default=status.findings_since_ms.get(finding.kind, now_ms))
    names = [
        f"{each} ({_lasted(unowned[each], now_ms)})" if each in unowned else str(each) for each in finding.partitions
    ]
    return _Problem(
        finding,
        _lasted(since_ms, now_ms),
        some(names, _MOST_NAMED) if len(names) > _NAMED_IN_TEXT else "",
        " ".join(map(str, finding.partitions[:_MOST_NAMED])) if finding.kind in _NEEDLESS else "",
    )


def _lasted(since_ms: int, now_ms: int) -> str:
    return ago(since_ms, now_ms).removesuffix(" ago")


def _topics(status: GroupStatus, members: Iterable[MemberView], *, by_lag: bool) -> Iterator[_Topic]:
    """Yield each topic of a group, in alphabetical order. The numbers of owners are their places among ``members``."""
    view = status.view
    needless = {each for finding in status.findings if finding.kind in _NEEDLESS for each in finding.partitions}
    topics: dict[str, list[PartitionView]] = {}
    # A group of other clients may lack owners and offsets in partitions that its members subscribe to.
    bare = status.unowned_since_ms.keys() - {each.topic_partition for each in view.partitions}
    for each in (*view.partitions, *(PartitionView(partition, None, None, None) for partition in bare)):
        topics.setdefault(each.topic_partition.topic, []).append(each)
    cells = _Cells(view, members, status.trends, needless, by_lag=by_lag)
    for topic, partitions in sorted(topics.items()):
        runs = [_Run(run[0].topic_partition.partition, cells.html(run)) for run in _runs(partitions)]
        yield _Topic(topic, _facts(partitions, status, needless), runs, len(runs) > 1 or runs[0].start > 0)


def _runs(partitions: Iterable[PartitionView]) -> list[list[PartitionView]]:
    """Divide the partitions of a topic after each 100th one, and where numbers are missing."""
    runs: list[list[PartitionView]] = []
    following = -1
    for each in sorted(partitions, key=lambda each: each.topic_partition):
        number = each.topic_partition.partition
        if number != following or number % _RUN == 0:
            runs.append([])
        runs[-1].append(each)
        following = number + 1
    return runs


def _facts(partitions: Sequence[PartitionView], status: GroupStatus, needless: Collection[TopicPartition]) -> str:
    trends = {
        each.topic_partition: status.trends[each.topic_partition]
        for each in partitions
        if each.topic_partition in status.trends
    }
    facts = [counted(partitions, "partition"), f"lag {number(lag_of(partitions))}", f"trend {worst_verdict(trends)}"]
    if not any(each.exists for each in partitions):
        facts.append("does not exist")
    elif all(each.topic_partition in needless for each in partitions):
        facts.append("no member reads it")
    return ", ".join(facts)


class _Cells:
    """
    Renders partitions as cells of a grid.

    The text of a cell is the number of the owner or the lag. Without an owner, it is ``–``, or ``×`` if no member needs
    the offset. It is ``?`` if the owner is not a member, or if the lag is unknown.
    """

    def __init__(
        self,
        view: GroupView,
        members: Iterable[MemberView],
        trends: Mapping[TopicPartition, Trend],
        needless: Collection[TopicPartition],
        *,
        by_lag: bool,
    ) -> None:
        self._trends = trends
        self._needless = needless
        self._by_lag = by_lag
        self._numbers: dict[MemberId | None, int] = {member.member_id: at for at, member in enumerate(members, 1)}
        self._most = max((each.lag or 0 for each in view.partitions), default=0)

    def html(self, partitions: Sequence[PartitionView]) -> str:
        """Return the list items of partitions of one topic."""
        topic = escaped(partitions[0].topic_partition.topic)
        return "".join(self._cell(topic, each) for each in partitions)

    def _cell(self, topic: str, partition: PartitionView) -> str:
        name, lag = partition.topic_partition, partition.lag
        at = self._numbers.get(partition.owner)
        verdict = self._trends[name].verdict if name in self._trends else "unknown"
        owner = f"owner {at}" if at else "no owner" if partition.owner is None else "its owner is not a member"
        if self._by_lag:
            text, style = short_number(lag), "lx" if lag is None else f"l{self._scale(lag, _LEVELS)}"
        else:
            text = str(at) if at else "?" if partition.owner is not None else "×" if name in self._needless else "–"
            style = f"o{at % _COLOURS}" if at else "none"
            style += f" b{self._scale(lag, _BARS)}" if lag else ""
        style += " bad" if verdict in _MARKED else ""
        title = f"{topic}:{name.partition}, {owner}, lag {number(lag)}, {verdict}"
        return f'<li class="{style}" title="{title}">{text}'

    def _scale(self, lag: int, most: int) -> int:
        # A scale by logarithm: a partition with a tenth of the largest lag is in trouble, too.
        return max(1, round(most * lag.bit_length() / self._most.bit_length())) if lag else 0


def _rebalances(view: GroupView) -> Iterator[_Rebalance]:
    longest_ms = max((entry.took_ms for entry in view.history), default=0) or 1
    for entry in view.history:
        took = f"{entry.took_ms} ms" if entry.took_ms < 1_000 else f"{entry.took_ms / 1_000:,.1f} s"
        yield _Rebalance(took, max(1, round(_LONGEST_BAR * entry.took_ms / longest_ms)))


def escaped(text: str | bytes) -> str:
    """
    Return a text as HTML that shows it. An invisible character is shown as in Python: ``\\u202e``.

    A name in ZooKeeper may have characters that reverse the text around them, or that hide it.
    """
    shown = to_basestring(text)
    if not shown.isprintable():
        shown = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in shown)
    return xhtml_escape(shown)


def number(value: int | None) -> str:
    """Return a number with commas, or ``?`` for None."""
    return "?" if value is None else f"{value:,}"


def short_number(value: int | None) -> str:
    """Return a number in at most four characters, such as ``950``, ``12k`` or ``3M``, or ``?`` for None."""
    if value is None:
        return "?"
    for unit in ("", "k", "M", "B", "T"):
        if value < 1_000:
            return f"{value}{unit}"
        value //= 1_000
    return "∞"
