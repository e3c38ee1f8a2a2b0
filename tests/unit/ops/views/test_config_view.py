"""The effective settings of a group, and the rules for changes of its ``config``."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from kiel_groups.config import DebounceConfig, GroupConfig
from kiel_groups.errors import ConfigError
from kiel_groups.group.znodes.contents import MemberAssignment, MemberInfo, Znode
from kiel_groups.group.znodes.group_settings import HistoryEntry
from kiel_groups.ops.views.config_view import (
    changes_table,
    differences,
    edited,
    effective_settings,
    outcome,
    settings_document,
    settings_tables,
)
from kiel_groups.ops.views.report import history_table
from kiel_groups.ops.views.znodes import view_group
from tests.helpers.group_snapshots import HEALTHY, A, B, config, plan, without

pytestmark = pytest.mark.unit

FIELDS: dict[str, Any] = {
    "version": 1,
    "store": "zookeeper",
    "debounce": {"quiet_ms": 5, "bound_ms": 9},
    "drained": ["b", "a"],
    "rebalance": {"at": 1, "reason": "x"},
    "odd": 1,
}


HISTORY, PLAN = "/kiel-groups/g/history/0000000004", "/kiel-groups/g/allocation"
ENTRY = HistoryEntry(
    generation=4,
    cause="c" * 900,
    leader=A,
    moved=1,
    members=2,
    partitions=3,
    took_ms=4,
    created_at_ms=1_700_000_000_000,
)
AWAY = Znode(MemberAssignment(4, "m", frozenset(), away_since_ms=1).encode())


def entry(moved: int) -> Znode:
    return Znode(replace(ENTRY, moved=moved).encode())


def member(name: str, settings: GroupConfig, session_timeout_ms: int = 6_000) -> Znode:
    info = MemberInfo(
        member_id=name,
        session_timeout_ms=session_timeout_ms,
        subscription=("t",),
        capacity=settings.capacity,
        settings=tuple(settings.changed_settings.items()),
    )
    return Znode(info.encode(), int(name.rpartition("-")[2], 16))


def settings_of(znodes: dict[str, Znode]) -> dict[tuple[str, tuple[str, ...]], tuple[Any, str]]:
    """Return value and source of each setting, by its name and the members that it is of."""
    found = effective_settings(view_group("g", znodes))
    return {(each.name, each.members): (each.value, each.source) for each in found}


def test_a_setting_comes_from_the_config_the_leader_or_the_default() -> None:
    """The group's config takes precedence over the leader's own settings, and these over the defaults."""
    leader = GroupConfig(group="g", debounce=DebounceConfig(quiet_ms=7, bound_ms=8), static_grace_ms=9)
    znodes = {
        **HEALTHY,
        f"/kiel-groups/g/members/{A}": member(A, leader),
        f"/kiel-groups/g/members/{B}": member(B, GroupConfig(group="g", max_poll_interval_ms=5, capacity=2.0), 4_000),
        "/kiel-groups/g/config": config(debounce={"quiet_ms": 1}, broker_racks={"3": "east"}, drained=["x"]),
    }
    found = settings_of(znodes)
    assert found["store", ()] == ("zookeeper", "the first member")
    assert found["allocator", ()] == ("round_robin", "the leader")
    assert found["debounce.quiet_ms", ()] == (1, "config")
    assert found["debounce.bound_ms", ()] == (8, "the leader")
    assert found["debounce.initial_delay_ms", ()] == (300, "default")
    assert found["static_grace_ms", ()] == (9, "the leader")
    assert found["broker_racks.3", ()] == ("east", "config")
    assert found["drained", ()] == (["x"], "config")
    assert found["max_poll_interval_ms", ("aaaa",)] == (300_000, "default")
    assert found["max_poll_interval_ms", ("bbbb",)] == (5, "the member")
    assert found["capacity", ("bbbb",)] == (2, "the member")
    assert found["session_timeout_ms", ("bbbb",)] == (4_000, "ZooKeeper")
    assert found["drain_alarm_ms", ()] == (30_000, "default")


def test_what_an_allocator_process_was_started_with_is_unknown() -> None:
    """It leads, but has no member znode."""
    gone = without(f"/kiel-groups/g/members/{A}", f"/kiel-groups/g/members/{B}")
    found = settings_of(dict(gone))
    assert found["debounce.quiet_ms", ()] == (None, "the leader")
    assert settings_document("g", effective_settings(view_group("g", gone)))["settings"][4] == {
        "setting": "debounce.quiet_ms",
        "value": None,
        "from": "the leader",
        "members": None,
        "change": "config set",
    }


def test_what_is_not_known_is_shown_as_such() -> None:
    """A leader follows the last valid config. The next leader of a dead group follows the config, and its own."""
    found = settings_of({**HEALTHY, "/kiel-groups/g/config": Znode(b"?")})
    assert found["store", ()] == (None, "unreadable config")
    assert found["debounce.quiet_ms", ()] == (None, "the last valid config")
    assert found["allocator", ()] == ("round_robin", "the last valid config")
    dead = {"/kiel-groups/g/config": config(static_grace_ms=5), PLAN: HEALTHY[PLAN]}
    found = settings_of(dead)
    assert found["static_grace_ms", ()] == (5, "config")
    assert found["allocator", ()] == (None, "the next leader")


def test_the_tables_fit_80_columns() -> None:
    """Text from znodes is bounded."""
    znodes = {**HEALTHY, "/kiel-groups/g/config": config(drained=["x" * 255], broker_racks={"1": "y" * 255})}
    hostile = replace(ENTRY, leader="", created_at_ms=10**300)
    console = Console(file=io.StringIO(), width=80)
    console.print(settings_tables(effective_settings(view_group("g", znodes))))
    console.print(changes_table(differences({}, {"odd": "#" * 1_000, "debounce": {"quiet_ms": 5}})))
    console.print(history_table([hostile, ENTRY]))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "2023-11-14 22:13:20" in text
    assert text.count("#") == 300


def test_a_plan_is_one_line_of_at_most_160_characters_in_a_pipe() -> None:
    """A long cause is cut. The other columns are as wide as they can be."""
    most = replace(ENTRY, leader="x" * 255, generation=10**9, members=10_000, moved=10**6, cause="c" * 1_000)
    console = Console(file=io.StringIO(), width=100_000)
    console.print(history_table([most], 80))
    assert isinstance(console.file, io.StringIO)
    (row,) = [line.rstrip() for line in console.file.getvalue().splitlines() if "ccc" in line]
    assert row.endswith("c" * 79 + "…")
    assert len(row) <= 160


@pytest.mark.parametrize(
    ("znodes", "expected"),
    [
        ({}, "group g has settled; bbbb owns 1 partition"),
        ({HISTORY: entry(2)}, "group g has settled at generation 4: 2 partitions have moved; bbbb owns 1 partition"),
        ({HISTORY: entry(0)}, "generation 4: no partition has moved from one member to another; bbbb owns 1 partition"),
        ({HISTORY: entry(0), PLAN: plan(fallback="last plan kept: it raised")}, "moved: last plan kept: it raised; "),
        ({HISTORY: entry(0), f"{PLAN}/one": AWAY}, "moved while one is away, whose partitions are kept; bbbb owns "),
        (dict.fromkeys((f"/kiel-groups/g/members/{A}", f"/kiel-groups/g/members/{B}")), "has no members any more"),
    ],
)
def test_the_outcome_says_what_moved_or_why_nothing(znodes: dict[str, Znode | None], expected: str) -> None:
    """An operator who has asked for a plan wants to know why nothing moves."""
    found = {path: znode for path, znode in {**HEALTHY, **znodes}.items() if znode is not None}
    assert expected.replace("bbbb", B) in outcome(view_group("g", found), {B})
    if znodes == {HISTORY: entry(0)}:
        right = "no partition has moved: by round_robin, the allocation is right as it is"
        assert outcome(view_group("g", found), ()) == f"group g has settled at generation 4: {right}"


def test_differences_are_by_setting() -> None:
    """A request for a plan is no setting. The order of drained members means nothing."""
    after = edited(FIELDS, {"debounce.quiet_ms": "6", "broker_racks.1": "7"}, ["odd", "debounce.bound_ms"])
    assert after["debounce"] == {"quiet_ms": 6}
    assert after["broker_racks"] == {"1": "7"}
    changed = {**after, "drained": ["a", "b"], "rebalance": {"at": 2, "reason": "y"}}
    assert differences(FIELDS, changed) == (
        ("broker_racks.1", None, "7"),
        ("debounce.bound_ms", 9, None),
        ("debounce.quiet_ms", 5, 6),
        ("odd", 1, None),
    )


def test_whole_fields_can_be_removed() -> None:
    """Also those that are wrong, so that a refused config can be repaired; the last part removes the whole."""
    assert edited(FIELDS, {}, ["debounce", "drained"]) == {
        name: value for name, value in FIELDS.items() if name not in ("debounce", "drained")
    }
    assert "debounce" not in edited(FIELDS, {}, ["debounce.quiet_ms", "debounce.bound_ms"])
    assert edited({"debounce": 5}, {"debounce.quiet_ms": "1"}, [])["debounce"] == {"quiet_ms": 1}


@pytest.mark.parametrize(
    ("put", "removed", "message"),
    [
        ({"store": "broker-v0"}, [], "store: all members have to agree on it, .* 'kiel-groups offsets copy' "),
        ({}, ["mode"], "mode: all members have to agree"),
        ({"max_poll_interval_ms": "5"}, [], r"each member has its own; .* GroupedConsumer\(max_poll_interval_ms="),
        ({"rack": "5"}, [], "'rack': each member has its own"),
        ({"drained": "a"}, [], "drained: 'kiel-groups drain' and 'undrain' changes it"),
        ({"weights": "a"}, [], "weights: 'kiel-groups weights set' changes it"),
        ({"debounce_quiet_ms": "5"}, [], "there is no setting 'debounce_quiet_ms'; did you mean 'debounce.quiet_ms'?"),
        ({"alocator": "5"}, [], "there is no setting 'alocator'; did you mean 'allocator'?"),
        ({"version": "5"}, [], "there is no setting 'version'; expected one of allocator, debounce.quiet_ms, "),
        ({"broker_racks": "5"}, [], "there is no setting 'broker_racks'; did you mean 'broker_racks.BROKER'?"),
        ({}, ["allocator"], "allocator is not set in the group's config; set there: "),
        ({}, ["rebalance"], "rebalance is not set"),
        ({}, ["version"], "version is not set"),
        ({}, ["debounce.initial_delay_ms"], "debounce.initial_delay_ms is not set"),
    ],
)
def test_what_sets_a_setting_is_named(put: dict[str, str], removed: list[str], message: str) -> None:
    """If a setting cannot be set or removed in the config, the error names what to do instead."""
    before = json.dumps(FIELDS)
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        edited(FIELDS, put, removed)
    assert json.dumps(FIELDS) == before
