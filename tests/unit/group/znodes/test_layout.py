"""The paths of a group's znodes."""

from __future__ import annotations

import pytest

from kiel_groups.group.znodes.layout import BROKER_IDS, GroupLayout, topic_path
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit


T10 = TopicPartition("t", 10)


LAYOUT = GroupLayout("g.1")


PATHS = {
    "root": (LAYOUT.root, "/kiel-groups/g.1"),
    "members": (LAYOUT.members, "/kiel-groups/g.1/members"),
    "member": (LAYOUT.member("m-1"), "/kiel-groups/g.1/members/m-1"),
    "election": (LAYOUT.election, "/kiel-groups/g.1/election"),
    "candidate": (LAYOUT.candidate_prefix("abc"), "/kiel-groups/g.1/election/abc-n_"),
    "group_state": (LAYOUT.group_state, "/kiel-groups/g.1/allocation"),
    "assignment": (LAYOUT.assignment("m-1"), "/kiel-groups/g.1/allocation/m-1"),
    "config": (LAYOUT.config, "/kiel-groups/g.1/config"),
    "ids": (LAYOUT.ids, "/consumers/g.1/ids"),
    "consumer id": (LAYOUT.consumer_id("m-1"), "/consumers/g.1/ids/m-1"),
    "owners": (LAYOUT.owners, "/consumers/g.1/owners"),
    "owners of a topic": (LAYOUT.topic_owners("t"), "/consumers/g.1/owners/t"),
    "owner": (LAYOUT.owner(T10), "/consumers/g.1/owners/t/10"),
    "offsets": (LAYOUT.offsets, "/consumers/g.1/offsets"),
    "offsets of a topic": (LAYOUT.topic_offsets("t"), "/consumers/g.1/offsets/t"),
    "offset": (LAYOUT.offset(T10), "/consumers/g.1/offsets/t/10"),
    "kiel's members": (LAYOUT.kiel_members, "/kiel/groups/g.1/members"),
    "topic": (topic_path("t"), "/brokers/topics/t"),
    "brokers": (BROKER_IDS, "/brokers/ids"),
}


@pytest.mark.parametrize("name", PATHS)
def test_path(name: str) -> None:
    """Each path of a group is the one that other tools and other versions use."""
    found, expected = PATHS[name]
    assert found == expected


def test_parents_are_listed_before_their_children() -> None:
    """
    Parents are listed before their children, so they can be created in this order. Afterwards, a member can register.
    """
    created = [""]
    for path in LAYOUT.parents:
        assert path.rpartition("/")[0] in created
        created.append(path)
    assert {LAYOUT.members, LAYOUT.election, LAYOUT.ids, LAYOUT.owners, LAYOUT.offsets} <= set(created)
