"""The limit of claims in one session."""

from __future__ import annotations

import pytest

from kiel_groups.group.planner import MOST_PATH_BYTES, TOO_MANY, limit_claims
from tests.helpers.plans import (
    LAYOUT,
    some,
    target,
)

pytestmark = pytest.mark.unit


def test_a_session_owns_no_more_partitions_than_its_end_can_delete() -> None:
    """
    A member gets no more partitions than the end of its session can delete. Partitions beyond this limit are
    unassigned, with the limit as the reason. A plan below the limit is not changed.
    """
    many, few = some(*range(20_000)), some(0, topic="u")
    cut = limit_claims(target(a=many, b=few), LAYOUT, "/chroot")
    bytes_owned = sum(len("/chroot" + LAYOUT.owner(partition)) for partition in cut.allocation["a"])
    assert 500 << 10 < bytes_owned <= MOST_PATH_BYTES
    assert cut.allocation["b"] == few
    assert many - cut.allocation["a"] == cut.unassigned.keys()
    assert set(cut.unassigned.values()) == {TOO_MANY}
    assert max(cut.allocation["a"]) < min(cut.unassigned)
    small = target(a=some(*range(1_000)), b=few)
    assert limit_claims(small, LAYOUT, "/chroot") is small
