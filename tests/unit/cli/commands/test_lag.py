"""``lag`` of several groups and over a window: order, sum, trends, progress and exit status, without servers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest

from kiel_groups.cli.app import run
from kiel_groups.cli.terminal import rendering
from kiel_groups.errors import CoordinationError, KielGroupsError
from kiel_groups.model import TopicPartition
from kiel_groups.ops.loaded_groups import LoadedGroups
from kiel_groups.ops.views.group_view import GroupView, PartitionView
from kiel_groups.ops.zookeeper_groups import ZooKeeperGroups

pytestmark = pytest.mark.unit

#: The offset and the log end of one partition, or of some.
Offsets = tuple[int | None, int | None]


def group(name: str, *offsets: Offsets, protocol_type: str = "consumer") -> GroupView:
    partitions = tuple(PartitionView(TopicPartition("t", number), None, *each) for number, each in enumerate(offsets))
    return GroupView(name, (), partitions, protocol_type, is_of_consumers=protocol_type == "consumer")


class Samples:
    """Loads of one group with one partition, at the times of a simulated clock; None is a load that fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, offsets: Sequence[Offsets | None]) -> None:
        self.now_s = 1000.0
        self.load_s = 0.0
        self._offsets = offsets
        clock = SimpleNamespace(monotonic=lambda: self.now_s, sleep=self._sleep, strftime=lambda _: "12:00:00")
        monkeypatch.setattr(rendering, "time", clock)
        monkeypatch.setattr(ZooKeeperGroups, "follow", lambda reader, *names: self._loads())

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def _loads(self) -> Iterator[LoadedGroups | KielGroupsError]:
        for each in self._offsets:
            self.now_s += self.load_s
            if each is None:
                yield CoordinationError("the connection broke")
            else:
                yield LoadedGroups((group("g", each),), 1, seen_ms=round(1000 * self.now_s))


def test_groups_are_sorted_by_lag_and_added(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The largest lag is first. Groups of programs have none. The check fails if the lag of any group is too large."""
    views = (
        group("a", (1, 2)),
        group("b", (5, 10), (0, None)),
        group("w", protocol_type="connect"),
        group("c", (3, 3)),
    )
    monkeypatch.setattr(ZooKeeperGroups, "load_all", lambda *_, **__: LoadedGroups(views, 1, "no broker answered"))
    assert run(["lag", "--zookeeper", "z"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert rows[0] == ["group", "partitions", "lag"]
    assert rows[2:5] == [["b", "2", "≥", "5"], ["a", "1", "1"], ["c", "1", "0"]]
    assert " ".join(rows[5]) == "lag of 3 groups: ≥ 6 (not fully known: no broker answered)"
    assert run(["lag", "--zookeeper", "z", "--json", "--check", "9"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["lag"], document["lag_problem"]) == (6, "no broker answered")
    assert [(each["group"], each["lag"]) for each in document["groups"]] == [("b", 5), ("a", 1), ("c", 0)]
    monkeypatch.setattr(ZooKeeperGroups, "load_all", lambda *_, **__: LoadedGroups((views[0], views[3]), 1))
    assert [run(["lag", "a", "c", "--zookeeper", "z", "--check", most]) for most in ("0", "1")] == [1, 0]
    assert run(["lag", "a", "w", "--zookeeper", "z"]) == 0
    monkeypatch.setattr(ZooKeeperGroups, "load_all", lambda *_, **__: LoadedGroups(views, 1))
    assert run(["lag", "a", "w", "--zookeeper", "z"]) == 2
    assert "'kiel-groups workers describe w --zookeeper z' shows them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("offsets", "verdict", "status"),
    [
        ([(10 * at, 10 * at + 5 + at) for at in range(21)], "growing", 1),
        ([(10 * at, 250) for at in range(21)], "falling", 0),
        ([(10, 10 + at) for at in range(1, 22)], "stuck", 1),
        ([(20, 30)] * 12 + [(10, 30)] * 9, "rewound", 1),
        ([(10 * at, 10 * at + 5) for at in range(21)], "steady", 0),
        ([(10 * at, 10 * at) for at in range(21)], "ok", 0),
        ([(10, 20), *[None] * 12, *[(10, 20)] * 8], "unknown", 1),
    ],
)
def test_the_check_of_a_window_depends_on_the_trend(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    offsets: Sequence[Offsets | None],
    verdict: str,
    status: int,
) -> None:
    """21 samples are taken over the window; a load that fails is a warning. Then the trend is shown, and checked."""
    samples = Samples(monkeypatch, offsets)
    assert run(["lag", "g", "--zookeeper", "z", "--window", "60s", "--check"]) == status
    assert samples.now_s == pytest.approx(1060)
    output = capsys.readouterr()
    assert f"trend of group g: {verdict}\n" in output.out
    assert output.err.splitlines()[0] == "info: sampling, for at most 60 s"
    assert output.err.count("a sample is missing: the connection broke") == (verdict == "unknown")


def test_slow_loads_prolong_the_window(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A trend needs ten samples; where only three fit into the window, sampling continues until there are ten."""
    samples = Samples(monkeypatch, [(10, 20)] * 30)
    samples.load_s = 2.0
    assert run(["lag", "g", "--zookeeper", "z", "--window=5", "--check"]) == 1
    assert 1020 <= samples.now_s < 1021
    assert "trend of group g: stuck\n" in capsys.readouterr().out


def test_a_limit_counts_beside_the_trend(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A lag that falls fails the check while it is larger than RECORDS. JSON has the trend and its reason."""
    for most, status in (("49", 1), ("50", 0)):
        Samples(monkeypatch, [(10 * at, 250) for at in range(21)])
        assert run(["lag", "g", "--zookeeper", "z", "--window=5", "--check", most, "--json"]) == status
        document = json.loads(capsys.readouterr().out)
        (partition,) = document["partitions"]
        assert (document["trend"], partition["trend"]) == ("falling", "falling")
        assert partition["trend_reason"] == "a lag of 240, then 50, over 20 commits"


def test_an_error_of_the_first_sample_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is nothing to show then."""
    Samples(monkeypatch, [None])
    assert run(["lag", "g", "--zookeeper", "z", "--window"]) == 1
    assert capsys.readouterr().out == ""
