"""The page of a group: its partitions by owner and by lag, its topics, its problems and its rebalances."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kiel_groups.group.znodes.contents import Snapshot, Znode
from kiel_groups.group.znodes.group_settings import HistoryEntry
from kiel_groups.model import TopicPartition
from kiel_groups.ops.loaded_groups import LoadedGroups
from kiel_groups.ops.views.lag_trend import Trend, worst_verdict
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.service import console
from kiel_groups.service.cluster_state import ClusterHistory, GroupStatus
from kiel_groups.service.group_page import group_values, number, short_number
from kiel_groups.wording import counted
from tests.helpers.group_snapshots import HEALTHY, JAVA, LATER_MS, LOG_ENDS, OF_JAVA, PROBLEMS, A, config

pytestmark = pytest.mark.unit

STUCK = {TopicPartition("t", 1): Trend("stuck", "no commit for 60 s")}


def seen(znodes: Snapshot, *, for_ms: int = 0, ends: Mapping[TopicPartition, int] = LOG_ENDS) -> GroupStatus:
    """Return the status of a group that has been the same in two loads."""
    history = ClusterHistory()
    view = view_group("g", znodes, ends)
    history.take(LoadedGroups((view,), 2, seen_ms=LATER_MS), 0.5)
    return history.take(LoadedGroups((view,), 2, seen_ms=LATER_MS + for_ms), 0.5).groups["g"]


def values(status: GroupStatus, *, by_lag: bool = False, after_ms: int = 0) -> dict[str, Any]:
    return group_values(status, LATER_MS + after_ms, by_lag=by_lag)


def cells(found: dict[str, Any], topic: str = "t") -> list[tuple[str, str, str]]:
    """Return the class, the title and the text of each cell of a topic."""
    html = "".join(run.cells for each in found["topics"] if each.name == topic for run in each.runs)
    return re.findall(r'<li class="([^"]*)" title="([^"]*)">([^<]*)', html)


def page(status: GroupStatus, *, of_brokers: bool = False) -> str:
    """Return the rendered section of the template."""

    class Cluster:
        name = "main"

    text = console._loader.load("group.html").generate(
        **values(status), counted=counted, number=number, worst_verdict=worst_verdict, here="/x", path="/x",
        cluster=Cluster(), of_brokers=of_brokers, utc=str, api_path="/v1/x", events="/v1/events",
    )  # fmt: skip
    return text.decode()


def test_cells_by_owner_and_by_lag_have_texts() -> None:
    """Colours only repeat what a cell says: the number of its owner or its lag, and the trend in its tooltip."""
    status = replace(seen(HEALTHY, ends={**LOG_ENDS, TopicPartition("t", 2): 12_010}), trends=STUCK)
    assert cells(values(status)) == [
        ("o1 b1", "t:0, owner 1, lag 2, unknown", "1"),
        ("o1 b1 bad", "t:1, owner 1, lag 2, stuck", "1"),
        ("o2 b3", "t:2, owner 2, lag 12,000, unknown", "2"),
    ]
    assert [(style, text) for style, _, text in cells(values(status, by_lag=True))] == [
        ("l1", "2"),
        ("l1 bad", "2"),
        ("l4", "12k"),
    ]
    assert cells(values(seen(HEALTHY, ends={}), by_lag=True))[0] == ("lx", "t:0, owner 1, lag ?, unknown", "?")


@pytest.mark.parametrize(
    ("problem", "topic", "text"),
    [("unowned", "t", "–"), ("orphans", "t", "?"), ("orphan-offsets", "old", "×"), ("gone-offsets", "gone", "×")],
)
def test_a_partition_without_a_member_is_marked(problem: str, topic: str, text: str) -> None:
    """Partitions without an owner, of a dead owner, and offsets that no member needs differ by their sign."""
    found = cells(values(seen(PROBLEMS[problem][0])), topic)
    assert ("none", text) in [(style.split()[0], sign) for style, _, sign in found]


def test_topics_have_their_lag_and_trend() -> None:
    """Each topic has its size, its lag, its worst trend, and whether members read it."""
    status = replace(seen({**PROBLEMS["orphan-offsets"][0], **PROBLEMS["gone-offsets"][0]}), trends=STUCK)
    facts = {topic.name: topic.facts for topic in values(status)["topics"]}
    assert facts["t"] == "4 partitions, lag 6, trend stuck"
    assert facts["old"] == "1 partition, lag ?, trend ok, no member reads it"
    assert facts["gone"] == "1 partition, lag ?, trend ok, does not exist"


def test_a_grid_is_divided_after_each_hundred_and_where_numbers_are_missing() -> None:
    """The first number of each part is that of its first partition; a topic in one part from 0 on needs no labels."""
    status = seen(HEALTHY)
    first = status.view.partitions[0]
    numbers = [*range(150), 170]
    partitions = tuple(replace(first, topic_partition=TopicPartition("t", each)) for each in numbers)
    (topic,) = values(replace(status, view=replace(status.view, partitions=partitions)))["topics"]
    assert [(run.start, run.cells.count("<li")) for run in topic.runs] == [(0, 100), (100, 50), (170, 1)]
    assert topic.is_labelled
    assert not values(status)["topics"][0].is_labelled


def test_problems_have_their_duration() -> None:
    """A problem has the time since it was first seen, and names all its partitions if its text leaves some out."""
    status = seen(PROBLEMS["unowned"][0], for_ms=60_000)
    assert status.findings_since_ms == {"unowned": LATER_MS}
    (problem,) = values(status, after_ms=180_000)["problems"]
    assert (problem.lasted, problem.partitions, problem.offsets) == ("3 min", "", "")
    many = tuple(TopicPartition("t", each) for each in range(6))
    status = replace(status, findings=(replace(status.findings[0], partitions=many),))
    (problem,) = values(status, after_ms=180_000)["problems"]
    assert problem.partitions == "t:0 (3 min), t:1 (3 min), t:2, t:3, t:4, t:5"
    orphans = seen(PROBLEMS["orphan-offsets"][0])
    assert [each.offsets for each in values(orphans)["problems"]] == ["old:0"]
    assert 'data-action="delete-offsets" data-topics="old:0"' in page(orphans)


def test_drained_members_are_named() -> None:
    """A drained member can be undrained in its row; drained slots without a member are named below."""
    status = seen({**HEALTHY, "/kiel-groups/g/config": config(drained=[A, "worker-9"])})
    found = values(status)
    assert (found["drained_away"], found["hosts"]) == ("worker-9", ["host"])
    text = page(status)
    assert f'data-action="undrain" data-member="{A}"' in text
    assert text.count('data-action="drain"') == 1
    assert 'data-action="drain' not in page(status, of_brokers=True)


def test_members_of_other_clients_are_members() -> None:
    """They have numbers, hosts and partitions like other members; what only our members do is not offered."""
    status = seen(OF_JAVA)
    assert cells(values(status))[1] == ("o1 b3", "t:1, owner 1, lag 2, unknown", "1")
    text = " ".join(page(status).split())
    assert "1 member, " in text
    assert f'<th scope="row">{JAVA}</th><td>shop-1</td> <td class="n" data-name="partitions">2</td>' in text
    assert '<td class="n" data-name="lag">4</td><td>Java client</td>' in text
    offered = set(re.findall('data-action="([a-z-]+)"', text))
    assert offered == {"reset", "delete-offsets", "delete"}
    mixed = " ".join(page(seen(PROBLEMS["foreign"][0])).split())
    assert "4 members, " in mixed
    assert '>?</td><td class="n" data-name="lag">?</td><td>kiel client</td> <td></td></tr>' in mixed
    assert mixed.count('data-action="drain"') == 2
    assert 'data-action="plan"' in mixed


@pytest.mark.parametrize(("pattern", "cells", "words"), [("t.*", 3, 0), ("(?!u).*", 0, 1)])
def test_partitions_without_an_owner_that_match_a_pattern(pattern: str, cells: int, words: int) -> None:
    """The partitions of topics that a Java consumer subscribes to are shown, or the pattern that is not evaluated."""
    ids = json.dumps({"version": 1, "subscription": {pattern: 1}, "pattern": "white_list"}).encode()
    topic = "/brokers/topics/t"
    text = page(seen({f"/consumers/g/ids/{JAVA}": Znode(ids, 0xCCCC), topic: HEALTHY[topic]}, ends={}))
    assert text.count(', no owner, lag ?, unknown">–') == cells
    assert text.count(f"the pattern {pattern} of {JAVA} is not evaluated") == words


def test_programs_have_neither_partitions_nor_offsets() -> None:
    """The page of a group of programs, such as workers, offers no action that such a group refuses."""
    status = seen(HEALTHY)
    text = page(replace(status, view=replace(status.view, is_of_consumers=False, partitions=())))
    assert 'data-action="' in text
    assert not [each for each in ("plan", "drain", "reset", "delete-offsets") if f'data-action="{each}"' in text]
    assert "lag <strong>" not in text


def test_a_view_of_the_plan_alone_is_named() -> None:
    """The page says that the owners may be older than the plan."""
    status = seen(HEALTHY)
    note = "owners and offsets are read next"
    assert note not in page(status)
    assert note in page(replace(status, view=replace(status.view, is_partial=True)))


def test_hostile_names_are_escaped() -> None:
    """Names of topics are in the HTML of the cells, which the template does not escape."""
    topic = '"><b id=hostile>'
    status = seen({**HEALTHY, f"/consumers/g/offsets/{topic}": Znode(), f"/consumers/g/offsets/{topic}/0": Znode(b"1")})
    assert "<b id" not in page(status)
    assert "&quot;&gt;&lt;b id=hostile&gt;:0, no owner" in page(status)


def test_rebalances_have_bars() -> None:
    """The longest rebalance has the longest bar, and none has no bar."""
    status = seen(HEALTHY)
    entry = HistoryEntry(
        generation=3, cause="join of x", leader=A, moved=1, members=2, partitions=3, took_ms=0, created_at_ms=LATER_MS
    )
    entries = (entry, replace(entry, took_ms=500), replace(entry, took_ms=10_000))
    found = values(replace(status, view=replace(status.view, history=entries)))["rebalances"]
    assert [(bar.took, bar.width) for _, bar in found] == [("0 ms", 1), ("500 ms", 3), ("10.0 s", 60)]


@pytest.mark.parametrize(
    ("value", "text"), [(None, "?"), (0, "0"), (999, "999"), (1_000, "1k"), (3_400_000, "3M"), (10**18, "∞")]
)
def test_short_numbers(value: int | None, text: str) -> None:
    assert short_number(value) == text


def test_a_large_group_takes_little_time() -> None:
    """The page of 10,000 partitions takes some 50 ms of the processor; this bound is far above it."""
    status = seen(HEALTHY)
    first = status.view.partitions[0]
    partitions = tuple(replace(first, topic_partition=TopicPartition("t", each)) for each in range(10_000))
    large = replace(status, view=replace(status.view, partitions=partitions))
    began_s = time.process_time()
    text = page(large)
    assert time.process_time() - began_s < 0.5
    assert text.count("<li class") == 10_000
