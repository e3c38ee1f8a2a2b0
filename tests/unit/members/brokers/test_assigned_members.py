"""The words that name the owner of a partition in a group that brokers coordinate."""

from __future__ import annotations

import pytest

from kiel_groups.errors import BrokerError
from kiel_groups.members.brokers.consumer_member import owner_words
from kiel_groups.model import TopicPartition
from kiel_groups.wire.consumer_protocol import ConsumerAssignment
from kiel_groups.wire.error_codes import NO_ERROR, ErrorCode, error_code
from kiel_groups.wire.group_requests import DescribedGroup, DescribedMember, DescribeGroupsRequest

pytestmark = pytest.mark.unit


def group(
    error: ErrorCode = NO_ERROR, state: str = "Stable", garbage: bytes = b"", **members: list[int]
) -> DescribedGroup:
    """Return a group whose members have these partitions of topic "t"."""
    described = tuple(
        DescribedMember(name, "", "", b"", garbage or ConsumerAssignment({"t": tuple(numbers)}).encode())
        for name, numbers in members.items()
    )
    return DescribedGroup(error, "g", state, "consumer", "range", described)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (group(me=[1], other=[0]), "but by other"),
        (group(me=[1], other=[2]), "but by no member"),
        (group(me=[0]), "yet: it is assigned, and its start is not known; wait for on_partitions_assigned"),
        (group(state="PreparingRebalance"), "but by an unknown one (the group is in the state PreparingRebalance)"),
        (group(error=error_code(16)), "but by an unknown one (NOT_COORDINATOR_FOR_CONSUMER (16))"),
        (group(garbage=b"\0", other=[0]), "but by an unknown one (the assignment of other"),
        (BrokerError("no answer"), "but by an unknown one (no answer)"),
    ],
)
async def test_the_coordinator_names_the_owner(answer: DescribedGroup | BrokerError, words: str) -> None:
    """Where it cannot, the words say why."""

    async def send(request: DescribeGroupsRequest) -> tuple[DescribedGroup, ...]:
        assert request.groups == ("g",)
        if isinstance(answer, BrokerError):
            raise answer
        return (answer,)

    found = await owner_words("g", "me", TopicPartition("t", 0), send)
    assert found.startswith(f"this member, me, {words}")
