"""The figures of the rebalance benchmark: owners from a transaction log, and processor time in an interval."""

from __future__ import annotations

import os
import re
import time

import pytest
from click.testing import CliRunner

from benchmarks.contenders import CONTENDERS, Group
from benchmarks.cpu import CpuTime
from benchmarks.ownership import Ownership
from benchmarks.rebalance import main
from benchmarks.transaction_log import Change, Kind

pytestmark = pytest.mark.unit

GROUP = Group("z:2181", "b:9092", "g", ("t",), 2)
OWNERS = "/consumers/g/owners/t"


def seen(*changes: tuple[int, int, Kind, str]) -> Ownership:
    """Return the ownership of two partitions after these changes, each with milliseconds, session, kind and path."""
    found = Ownership(CONTENDERS[0].paths(GROUP), GROUP.partitions)
    found.take(Change(number + 1, *change) for number, change in enumerate(changes))
    return found


def test_a_moved_partition_is_measured_from_the_log() -> None:
    """
    A transaction log shows the owners, the time at which the group is balanced, and how long a moved partition had no
    owner.
    """
    changes = [
        (0, 1, Kind.CREATE, "/consumers/g/ids/one"),
        (1, 1, Kind.CREATE, f"{OWNERS}/0"),
        (1, 1, Kind.CREATE, f"{OWNERS}/1"),
        (50, 2, Kind.CREATE, "/consumers/g/ids/two"),
        (60, 1, Kind.DELETE, f"{OWNERS}/1"),
        (72, 2, Kind.CREATE, f"{OWNERS}/1"),
    ]
    assert seen(*changes[:3]).balanced(1)
    assert not any(seen(*changes[:count]).balanced(2) for count in range(6))
    found = seen(*changes)
    assert found.balanced(2)
    assert (found.joined_ms[2], found.last_ms, found.unowned_ms) == (50, 72, 12)
    assert found.owners() == {"t/0": 1, "t/1": 2}
    assert found.between(zxid=3, until_ms=60) == 2


def test_the_end_of_a_session_ends_its_ownership() -> None:
    """
    The end of a session ends its ownership, although the log has no entries for its znodes. The time without an owner
    starts then.
    """
    found = seen(
        (0, 1, Kind.CREATE, "/consumers/g/ids/one"),
        (0, 1, Kind.CREATE, f"{OWNERS}/0"),
        (9, 1, Kind.SESSION_CLOSED, ""),
    )
    assert (found.members, found.owners(), found.ended_ms) == (set(), {}, {1: 9})


def test_the_first_lock_in_a_queue_owns_the_partition() -> None:
    """
    The first lock in a partition's queue owns the partition. kazoo's SetPartitioner queues by the sequence number in a
    znode's name.
    """
    partitioner = next(one for one in CONTENDERS if one.mere_names)
    found = Ownership(partitioner.paths(GROUP), GROUP.partitions)
    for number, (session, place) in enumerate(((7, 4), (8, 2))):
        path = f"/g/locks/0/{'f' * 32}__lock__{place:010d}"
        found.take([Change(number, 0, session, Kind.CREATE, path)])
    assert found.owners() == {"0": 8}


def test_the_processor_time_of_a_busy_process_is_measured() -> None:
    """The processor time of a process is measured between its first and its last sample."""
    measured = CpuTime()
    measured.add(os.getpid())
    measured.sample()
    start_s = time.process_time()
    while time.process_time() < start_s + 0.2:
        pass
    measured.sample()
    start_ms, end_ms = measured._moments_ms
    used_s = measured.cores(start_ms, end_ms) * (end_ms - start_ms) / 1000
    assert used_s == pytest.approx(measured._totals_s[1] - measured._totals_s[0])
    assert used_s >= 0.2
    assert measured.cores(end_ms, end_ms + 1000) == measured.cores(start_ms, start_ms) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--size", "4"], r"'4' given; expected MEMBERSxPARTITIONS, such as 4x64"),
        (["--size", "1x64"], r"with 2 members at least"),
        (["--only", "curator"], r"'curator' given; known, but for slow ones with --quick: ours, sticky, floor;"),
        (["--rounds", "0"], r"x>=1"),
    ],
)
def test_invalid_options_are_refused(options: list[str], message: str) -> None:
    """Invalid options are refused before any server is started."""
    outcome = CliRunner().invoke(main, options)
    assert outcome.exit_code == 2
    assert re.search(message, " ".join(outcome.output.split()))
