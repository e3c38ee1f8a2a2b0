"""The figures of the benchmark of workers: sizes, peers, znodes of workers, and its table."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from benchmarks.ownership import Ownership
from benchmarks.transaction_log import Change, Kind
from benchmarks.worker_group import WORKER_GROUPS, worker_paths
from benchmarks.workers import PEERS, SIZES, main, show, tasks_each

pytestmark = pytest.mark.unit


def test_the_sizes_are_those_that_are_documented() -> None:
    """A small group has 10 connectors of 3 tasks, a large one 50 connectors of 20 tasks."""
    assert [(tasks // tasks_each(tasks), tasks_each(tasks)) for _, tasks in SIZES] == [(10, 3), (50, 20)]


def test_each_group_of_workers_has_consumers_with_its_settings_as_a_peer() -> None:
    """The peer of a group has the group's name, and so its allocator and its debounce."""
    names = {setup.name: setup.name.replace("workers", "consumers") for setup in WORKER_GROUPS}
    assert {name: peer.name for name, peer in PEERS.items()} == names


def test_both_sessions_of_a_worker_are_found_in_the_log() -> None:
    """A worker has a znode on the session of its work, and one on that of its membership; claims are not such ones."""
    found = Ownership(worker_paths("g"), 0)
    created = [
        (1, "/kiel-groups/g/workers/w"),
        (2, "/kiel-groups/g/members/m"),
        (3, "/kiel-groups/g/connect/owners/c/0"),
    ]
    changes = [Change(session, 10 * session, session, Kind.CREATE, path) for session, path in created]
    found.take([*changes, *(Change(9 + one, 90 + one, one, Kind.SESSION_CLOSED) for one in (1, 2, 3))])
    assert found.joined_ms == {1: 10, 2: 20}
    assert found.ended_ms == {1: 91, 2: 92}


def test_a_peer_has_a_line_of_the_table_without_the_figures_of_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    """Figures that a row does not have stay empty; the others have their column's form."""
    show(
        {"workers": 3, "tasks": 30, "group": "consumers, sticky", "event": "kill", "s": 0.02, "writes": 18, "cores": 1}
    )
    assert capsys.readouterr().out.split() == ["3×30", "consumers,", "sticky", "kill", "0.020", "18", "1.00"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--size", "3x31"], r"'3x31' given; expected a multiple of 3 tasks"),
        (["--size", "20x1010"], r"'20x1010' given; expected a multiple of 20 tasks"),
        (["--only", "connect"], r"'connect' given; known: workers, sticky, floor;"),
    ],
)
def test_invalid_options_are_refused(options: list[str], message: str) -> None:
    """Invalid options are refused before any server is started."""
    outcome = CliRunner().invoke(main, options)
    assert outcome.exit_code == 2
    assert re.search(message, " ".join(outcome.output.split()))
