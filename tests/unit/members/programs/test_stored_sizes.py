"""How much a program may offer and assign, by what stores it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kiel_groups.members.programs.checked_hooks import MessageSizes, StoredSizes, ZnodeSizes
from kiel_groups.wire.group_requests import GroupProtocol

pytestmark = pytest.mark.unit

ADVICE = "expected at most 956; store larger data elsewhere, and offer or assign its place"
ZNODES, MESSAGE = ZnodeSizes(), MessageSizes()

#: The largest data of a znode, of which base64 takes a third more, and of a message.
IN_ZNODE, IN_MESSAGE = 956 * 768, 956 * 1024


@pytest.mark.parametrize(
    ("sizes", "protocols", "excess"),
    [
        (ZNODES, {"v1": IN_ZNODE - 10}, ""),
        (ZNODES, {"v1": IN_ZNODE}, "what this member offers (v1) takes 956 KiB in ZooKeeper"),
        (ZNODES, {"v1": IN_ZNODE // 2, "v2": IN_ZNODE}, "what this member offers (v1, v2) takes 1434 KiB in ZooKeeper"),
        (MESSAGE, {"v1": IN_MESSAGE - 2}, ""),
        (MESSAGE, {"v1": IN_MESSAGE}, "what this member offers (v1) takes 956 KiB in its coordinator's message"),
        (
            MESSAGE,
            {"v1": 2_000_000, "v2": 0},
            "what this member offers (v1, v2) takes 1953 KiB in its coordinator's message",
        ),
    ],
)
def test_an_offer_has_a_limit(sizes: StoredSizes, protocols: Mapping[str, int], excess: str) -> None:
    """All protocols of a member count together, with their names."""
    offered = [GroupProtocol(name, bytes(size)) for name, size in protocols.items()]
    assert sizes.excess_of_offer(offered) == (f"{excess}; {ADVICE}" if excess else "")


@pytest.mark.parametrize(
    ("sizes", "metadata", "assignments", "excess"),
    [
        (ZNODES, {"a": IN_ZNODE}, {"a": IN_ZNODE, "b": IN_ZNODE}, ""),
        (ZNODES, {"a": 0, "b": 0}, {"a": 1, "b": IN_ZNODE + 1}, "the assignment of b takes 956 KiB in ZooKeeper"),
        (MESSAGE, {"a": 1_000, "b": 1_000}, {"a": 400_000, "b": 400_000}, ""),
        (
            MESSAGE,
            {"a": 1_000, "b": 1_000},
            {"a": 500_000, "b": 500_000},
            "the metadata and the assignments of 2 members take 979 KiB in its coordinator's message",
        ),
        (
            MESSAGE,
            {"a": IN_MESSAGE - 511},
            {},
            "the metadata and the assignments of 1 member take 956 KiB in its coordinator's message",
        ),
        (MESSAGE, {"a": IN_MESSAGE - 512}, {}, ""),
    ],
)
def test_assignments_have_a_limit(
    sizes: StoredSizes, metadata: Mapping[str, int], assignments: Mapping[str, int], excess: str
) -> None:
    """On ZooKeeper, each assignment has the limit for itself; brokers store the group as one message."""
    found = sizes.excess_of_assignments(
        {member: bytes(size) for member, size in metadata.items()},
        {member: bytes(size) for member, size in assignments.items()},
    )
    assert found == (f"{excess}; {ADVICE}" if excess else "")
