"""Reads of a group's offsets, whose coordinator moves, loads, or refuses."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kiel_groups.errors import BrokerConnectionError, BrokerError, KielGroupsError, NoOffsetsError
from kiel_groups.members.brokers import offset_requests as offset_reads
from kiel_groups.members.brokers.offset_requests import fetch_stored, read_offsets
from kiel_groups.model import OffsetAndMetadata, TopicPartition
from kiel_groups.wire.error_codes import NO_ERROR, error_code
from kiel_groups.wire.offsets import FetchedOffset, OffsetFetchRequestV1

pytestmark = pytest.mark.unit

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))

#: What a coordinator has for a partition: an offset, -1 for none, or an error code as text.
Answer = Mapping[TopicPartition, int | str]

LOADING, MOVED, REFUSED = "14", "16", "29"


class Coordinator:
    """Answers each request with the next of the given answers, and the last one from then on."""

    def __init__(self, *answers: Answer | KielGroupsError) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[TopicPartition, ...]] = []
        self.codes: list[int] = []

    async def send(self, request: OffsetFetchRequestV1) -> Mapping[TopicPartition, FetchedOffset]:
        self.asked.append(request.partitions)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, KielGroupsError):
            raise answer
        return {partition: _fetched(answer[partition]) for partition in request.partitions if partition in answer}

    async def read(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        return await read_offsets("g", partitions, self.send, self.codes.append)


def _fetched(value: int | str) -> FetchedOffset:
    if isinstance(value, str):
        return FetchedOffset(-1, "", error_code(int(value)))
    return FetchedOffset(value, "", NO_ERROR)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the pauses between tries last a millisecond at most."""
    monkeypatch.setattr(offset_reads, "FIRST_READ_PAUSE_S", 0.001)
    monkeypatch.setattr(offset_reads, "LONGEST_READ_PAUSE_S", 0.001)


async def test_partitions_without_an_offset_are_left_out() -> None:
    """They are no error, and are not asked for again."""
    coordinator = Coordinator({P0: 7, P1: -1})
    assert await coordinator.read(P1, P0) == {P0: 7}
    assert coordinator.asked == [(P0, P1)]


async def test_no_partitions_need_no_request() -> None:
    """The coordinator may not even be known."""
    coordinator = Coordinator(BrokerConnectionError("down"))
    assert await coordinator.read() == {}
    assert coordinator.asked == []


@pytest.mark.parametrize("passing", [LOADING, MOVED, "15", "-1", "7"])
async def test_only_what_failed_is_asked_for_again(passing: str) -> None:
    """What was found in an earlier try is kept; the member hears of each code."""
    coordinator = Coordinator({P0: 7, P1: passing}, {P1: 8})
    assert await coordinator.read(P0, P1) == {P0: 7, P1: 8}
    assert coordinator.asked == [(P0, P1), (P1,)]
    assert coordinator.codes == [int(passing)]


async def test_a_partition_that_an_answer_lacks_is_asked_for_again() -> None:
    """It is not taken for one without an offset."""
    coordinator = Coordinator({P0: 7}, BrokerConnectionError("down"), {P1: 8})
    assert await coordinator.read(P0, P1) == {P0: 7, P1: 8}


async def test_a_refusal_for_good_ends_the_read_and_is_raised() -> None:
    """It is raised rather than the failures of other partitions, which may pass."""
    coordinator = Coordinator({P0: LOADING, P1: REFUSED, P2: 5})
    with pytest.raises(NoOffsetsError, match=r"group g: the offset of t:1 cannot be read: .*\(29\)"):
        await coordinator.read(P0, P1, P2)
    assert len(coordinator.asked) == 1
    assert coordinator.codes == [14, 29]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({P0: LOADING}, r"the offset of t:0 cannot be read: .*\(14\)"),
        ({}, "the coordinator's answers lack t:0"),
        (BrokerConnectionError("down"), "down"),
    ],
)
async def test_a_failure_that_lasts_is_raised(answer: Answer | KielGroupsError, words: str) -> None:
    """After some tries, the last failure is that of the read. It is no refusal: a start is not reset for it."""
    coordinator = Coordinator(answer)
    with pytest.raises(BrokerError, match=words) as raised:
        await coordinator.read(P0)
    assert not isinstance(raised.value, NoOffsetsError)
    assert len(coordinator.asked) == 10


async def test_offsets_have_their_texts_and_partitions_their_errors() -> None:
    """A caller that needs some of the partitions gets those that were found."""
    coordinator = Coordinator({P0: 7, P1: REFUSED})
    found, failures = await fetch_stored("g", [P0, P1], coordinator.send)
    assert found == {P0: OffsetAndMetadata(7, "")}
    assert failures.keys() == {P1}


async def test_a_caller_may_wait_for_other_codes() -> None:
    """A coordinator of 0.8.2 does not know a topic until the controller has notified it."""
    coordinator = Coordinator({P0: "3"}, {P0: 7})
    found, failures = await fetch_stored("g", [P0], coordinator.send, repeated=frozenset({3}))
    assert (found[P0].offset, failures) == (7, {})
