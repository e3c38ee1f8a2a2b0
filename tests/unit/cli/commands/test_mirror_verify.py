"""``kiel-groups mirror verify``: the report, the document, and the exit status."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kiel_groups.cli.app import run
from kiel_groups.cli.parameters.mirror_clusters import MirrorClusters
from kiel_groups.errors import ConfigError
from kiel_groups.mirror import mirror_verification, mirror_view
from kiel_groups.mirror.comparison import ALL, Difference, PartitionComparison, RangeSum
from kiel_groups.mirror.mirror_view import MirrorView
from kiel_groups.model import TopicPartition
from kiel_groups.workers.stores.worker_group_view import WorkerGroup
from kiel_groups.workers.values import ConfigSnapshot, ConnectorEntry

pytestmark = pytest.mark.unit

NOTHING = WorkerGroup({}, ConfigSnapshot(1, {}), {}, {}, ())
VERIFY = ("mirror", "verify", "--from", "z:2181", "--to", "new:9092", "--name", "leave-0.8")


def compared(number: int, equal: int, *differences: Difference, **more: Any) -> PartitionComparison:
    counts: Counter[str] = Counter()
    for each in differences:
        counts[each.kind] += each.records
    records = (equal, equal)
    return PartitionComparison(
        TopicPartition("orders", number), "copy", "", records, equal, counts, list(differences), **more
    )


class FakeVerification:
    """Returns given results."""

    found: Sequence[PartitionComparison] = ()
    given: Mapping[str, Any] = {}

    def __init__(self, *_: object, **given: Any) -> None:
        type(self).given = given

    def run(self) -> Iterator[PartitionComparison]:
        self.given["progress"](TopicPartition("orders", 0), 1, 2)
        yield from self.found


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the settings of the stored connector."""
    config: dict[str, str] = {}
    configuration = ConfigSnapshot(1, {"leave-0.8": ConnectorEntry(config)})
    view = MirrorView("leave-0.8", replace(NOTHING, configuration=configuration))
    monkeypatch.setattr(mirror_verification, "MirrorVerification", FakeVerification)
    monkeypatch.setattr(mirror_view, "read_mirror", lambda *_, **__: view)
    monkeypatch.setattr(MirrorClusters, "source_brokers", lambda _: "old:9092")
    monkeypatch.setattr(MirrorClusters, "open_target", lambda _: None)
    return config


DOUBLED = Difference("doubled", (5, 25), (105, 125), 20)
MISSING = Difference("missing", (99, 100), None, 1)


def test_a_report_names_each_range(capsys: pytest.CaptureFixture[str], fakes: dict[str, str]) -> None:
    """What needs action comes first. Doubled records are explained unless the mirror writes exactly once."""
    FakeVerification.found = [compared(0, 100, DOUBLED), compared(1, 99, MISSING)]
    assert run([*VERIFY, "--topics", "o*, b"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "mirror leave-0.8: not complete; 199 of 199 records of the source are equal",
        "  orders → copy: 2 partitions, 199 equal; 20 doubled, 1 missing",
        "    orders:1 missing: 1 record, source offset 99",
        "    orders:0 doubled: 20 records, source offsets 5 to 24, target offsets 105 to 124",
    ]
    assert err == ""
    assert FakeVerification.given["topics"] == ["o*", "b"]

    assert run([*VERIFY, "--topics", "o*,"]) == 2
    assert "--topics': 'o*,' given; expected names of topics, separated by commas." in capsys.readouterr().err

    FakeVerification.found = [compared(0, 100, DOUBLED)]
    assert run([*VERIFY, "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    fakes |= {"exactly.once": "true", "dead.letter.topic": "dead"}
    assert run([*VERIFY, "--quiet"]) == 1
    assert "mirror leave-0.8: not complete" in capsys.readouterr().out
    assert FakeVerification.given["dead_letter_topic"] == "dead"


def test_a_verification_without_a_mirror_says_nothing_of_its_connector(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line about a deleted connector is printed only if the target has the mirror."""
    monkeypatch.setattr(mirror_view, "read_mirror", lambda *_, **__: MirrorView("leave-0.8", NOTHING))
    FakeVerification.found = [compared(0, 100)]
    assert run(VERIFY) == 0
    assert "has no connector 'leave-0.8' any more" in capsys.readouterr().err

    def missing(_: object) -> Iterator[PartitionComparison]:
        raise ConfigError("the target has no such mirror")

    monkeypatch.setattr(FakeVerification, "run", missing)
    assert run(VERIFY) == 2
    assert capsys.readouterr().err == "error: the target has no such mirror\n"


def test_a_report_says_which_part_of_a_turned_topic_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each topic names the offsets and the reason."""
    refused = PartitionComparison(TopicPartition("orders", 2), "copy", "it has not continued", part="only some records")
    found = [compared(0, 99, compared=((5, 104), (9, 108))), compared(1, 0, compared=((7, 7), (8, 9)))]
    FakeVerification.found = [*(replace(each, part="only some records") for each in found), refused]
    assert run([*VERIFY]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  orders → copy: 3 partitions, 99 equal; no difference",
        "    only some records: orders:0 (source offsets 5 to 103, target offsets 9 to 107), orders:1 (no source offset"
        " from 7 on, target offset 8)",
        "    orders:2 is not compared: it has not continued",
    ]
    FakeVerification.found = [refused]
    assert run([*VERIFY]) == 1
    assert capsys.readouterr().out.splitlines()[:2] == [
        "mirror leave-0.8: not complete",
        "  orders → copy: 1 partition, 0 equal; not compared",
    ]


def test_a_report_has_the_way_back(capsys: pytest.CaptureFixture[str], fakes: dict[str, str]) -> None:
    """Records that were copied back twice have an explanation, also if the mirror writes exactly once."""
    fakes |= {"exactly.once": "true"}
    FakeVerification.found = [compared(0, 100), compared(0, 40, DOUBLED, is_back=True, part="records since its turn")]
    assert run([*VERIFY]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "mirror leave-0.8: complete; 100 of 100 records of the source are equal; copied back: 40 of 40",
        "  orders → copy: 1 partition, 100 equal; no difference",
        "  orders ← copy: 1 partition, 40 equal; 20 doubled",
        "    records since its turn: none",
        "    orders:0 doubled: 20 records, source offsets 5 to 24, target offsets 105 to 124",
    ]
    assert run([*VERIFY, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["partitions"]
    assert [(row["direction"], [each["explained"] for each in row["differences"]]) for row in rows] == [
        ("forward", []),
        ("back", [True]),
    ]


def test_a_document_has_all_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    """The document has the sums between checkpoints, and why a partition was not compared."""
    sums = [(RangeSum(0, 99, "aa"), RangeSum(3, 99, "aa"))]
    refused = PartitionComparison(TopicPartition("orders", 2), "copy", "copy has no such partition")
    FakeVerification.found = [
        compared(0, 100, MISSING, sums=sums, is_cut=True, part="only some records", compared=((5, 105), (9, 9))),
        refused,
    ]
    assert run([*VERIFY, "--json"]) == 1
    first, second = json.loads(capsys.readouterr().out)["partitions"]
    assert (first["part"], second["compared"]) == ("only some records", None)
    assert first["compared"] == {"source": {"from": 5, "to": 105}, "target": {"from": 9, "to": 9}}
    assert first["differences"] == [
        {"kind": "missing", "explained": False, "records": 1, "source": {"from": 99, "to": 100}, "target": None}
    ]
    assert first["ranges"] == [
        {
            "source": {"start": 0, "records": 99, "checksum": "aa"},
            "target": {"start": 3, "records": 99, "checksum": "aa"},
        }
    ]
    assert (first["ended_early"], second["complete"], second["not_compared"]) == (True, False, refused.refusal)


def test_long_reports_and_hashed_topics(capsys: pytest.CaptureFixture[str]) -> None:
    """A report has at most 20 ranges of a topic. A topic whose keys are hashed anew has one result."""
    ranges = [Difference("missing", (at, at + 1), None, 1) for at in range(0, 60, 2)]
    FakeVerification.found = [compared(0, 30, *ranges, is_cut=True)]
    assert run(list(VERIFY)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [
        "    and 10 more ranges, which --json lists",
        "    orders:0 differs at too many places: the comparison ended early",
    ]
    result = compared(ALL, 0, Difference("different", None, None, 2))
    result.records = (10, 12)
    FakeVerification.found = [result]
    assert run(list(VERIFY)) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  orders → copy: all partitions together, 0 equal; 2 different",
        "    its keys are hashed anew, and the records of all partitions together differ: 10 records on the source,"
        " 12 on the target",
    ]
