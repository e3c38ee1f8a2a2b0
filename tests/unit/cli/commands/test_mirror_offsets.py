"""``kiel-groups mirror offsets``: the table, the exit status, the repeated move, and mistakes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kiel_groups.cli.app import run
from kiel_groups.cli.parameters.mirror_clusters import MirrorClusters
from kiel_groups.errors import KielGroupsError
from kiel_groups.mirror import group_offsets
from kiel_groups.mirror.checkpoints import TranslatedOffset
from kiel_groups.mirror.group_offsets import GroupTranslation
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

OFFSETS = ("mirror", "offsets", "g", "--from", "z:2181", "--to", "new:9092")


def translation(*rows: TranslatedOffset, **more: Any) -> GroupTranslation:
    return GroupTranslation("g", rows, more.pop("before", {}), **more)


def row(number: int, source: int | None, target: int | None = None, again: int | None = None, **more: str) -> Any:
    return TranslatedOffset(TopicPartition("orders", number), "copy.orders", source, target, again, **more)


class FakeMover:
    """Returns given translations, in turn; an error is raised."""

    answers: list[Any]
    written: list[GroupTranslation]

    def __init__(self, *_: object, **__: object) -> None:
        self.written.clear()

    def translate(self, _: object, **__: object) -> list[GroupTranslation]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [answer]

    def write(self, translated: GroupTranslation) -> None:
        self.written.append(translated)


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_offsets, "GroupMover", FakeMover)
    monkeypatch.setattr(FakeMover, "written", [], raising=False)
    monkeypatch.setattr(MirrorClusters, "open_target", lambda _: None)


@contextmanager
def signals_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_table_shows_what_is_moved_and_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is 1 if an offset is left out."""
    rows = [
        row(0, 75_057, 63_044, 12_013),
        row(1, 7, refusal="before 100, where the mirror begins"),
        row(2, 10, 5, 5),
        row(3, 9, 8, 1, note="the mirror is 1 behind"),
    ]
    before = {TopicPartition("copy.orders", 2): 7}
    FakeMover.answers = [translation(*rows, before=before, members=("c-1",))] * 2
    assert run(list(OFFSETS)) == 1
    out, err = capsys.readouterr()
    heading, _, columns, rule, *lines = out.splitlines()
    assert heading == "group g, topic orders → copy.orders"
    assert columns == " partition   source   target   read again"
    assert rule.strip("─ ") == ""
    assert lines == [
        "         0   75,057   63,044       12,013",
        "         1        7        -            -   left out: before 100, where the mirror begins",
        "         2       10        5            5   left out: at 7 already",
        "         3        9        8            1   the mirror is 1 behind",
    ]
    assert err.splitlines() == [
        "info: group g has 1 live member on the source, so its offsets there still move",
        "warning: group g: 2 offsets set at new:9092; at most 12,014 records to read again; 2 offsets are left out",
    ]
    assert run([*OFFSETS, "--dry-run", "--json"]) == 1
    out, err = capsys.readouterr()
    assert [(each["set"], each["remark"]) for each in json.loads(out)["offsets"]][:2] == [
        (False, None),
        (False, "left out: before 100, where the mirror begins"),
    ]
    assert "group g: 2 offsets to set at new:9092" in err
    assert FakeMover.written == []


def test_a_repeated_move_ends_when_the_group_has_members(capsys: pytest.CaptureFixture[str]) -> None:
    """Only changes are shown. An error after the first time is shown, and the next time is tried."""
    at = TopicPartition("copy.orders", 0)
    FakeMover.answers = [
        translation(row(0, 9, 8, 1)),
        translation(row(0, 9, 8, 1), before={at: 8}),
        KielGroupsError("gone"),
        translation(row(0, 12, 12, 0), before={at: 8}),
        translation(row(0, 12, 12, 0), before={at: 12}, target_members=("c-1 (host h)",)),
    ]
    with signals_restored():
        assert run([*OFFSETS, "--every", "0.1"]) == 0
    out, err = capsys.readouterr()
    assert out.count("topic orders") == 1
    shown = [line for line in err.splitlines() if line.startswith("info: ")]
    assert shown == [
        "info: group g: 1 offset set at new:9092; at most 1 record to read again",
        "info: group g: 1 offset set at new:9092",
        "info: group g has members on the target, c-1 (host h): its offsets are no longer moved",
    ]
    assert "trying again: gone" in err
    assert len(FakeMover.written) == 3


def test_a_repeated_move_of_a_group_with_members_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A user who starts too late is told so, and the exit status is 1."""
    FakeMover.answers = [translation(row(0, 9, 8, 1), target_members=("c-1 (host h)",))]
    with signals_restored():
        assert run([*OFFSETS, "--every", "1"]) == 1
    assert capsys.readouterr().err.startswith("error: group g has members on the target: c-1 (host h); only offsets")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--every", "5", "--dry-run"), "--dry-run does not go with --every."),
        (("a/b",), "GROUP: 'a/b' is not a legal name"),
        (("--every", "0"), "'0' is not a number of seconds ≥ 0.1"),
    ],
)
def test_mistakes(options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Options that do not go together are refused before a server is asked."""
    assert run([*OFFSETS, *options]) == 2
    assert message in capsys.readouterr().err


def test_a_group_without_offsets(capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to move, and a user may have mistaken the group."""
    FakeMover.answers = [translation()]
    assert run(list(OFFSETS)) == 1
    assert capsys.readouterr().err == "error: group g has no offsets on the source\n"
