"""What people may set for a whole group, and the places of static members that are away."""

from __future__ import annotations

import pytest

from kiel_groups.config import DebounceConfig
from kiel_groups.errors import ProtocolError
from kiel_groups.group.leader.static_members import absences, next_end_ms
from kiel_groups.group.znodes.contents import MemberAssignment
from kiel_groups.group.znodes.dynamic_config import DynamicConfig
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

OWN = DebounceConfig(quiet_ms=100, bound_ms=1_000, initial_delay_ms=300)


def test_what_nobody_set_is_the_leaders_own() -> None:
    """The settings that members agree on stand in the same znode and mean nothing here."""
    dynamic_config = DynamicConfig.parse(b'{"version":1,"store":"zookeeper","mode":"cooperative"}', "/config")
    assert dynamic_config == DynamicConfig()
    assert dynamic_config.debounced(OWN) == OWN


def test_what_was_set_wins() -> None:
    """Each field by itself, down to 0."""
    data = b'{"allocator":"sticky","debounce":{"quiet_ms":0},"static_grace_ms":5,"drained":["m1"]}'
    dynamic_config = DynamicConfig.parse(data, "/config")
    assert (dynamic_config.allocator, dynamic_config.static_grace_ms, dynamic_config.drained) == (
        "sticky",
        5,
        frozenset({"m1"}),
    )
    assert dynamic_config.debounced(OWN) == DebounceConfig(quiet_ms=0, bound_ms=1_000, initial_delay_ms=300)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"[", "/config: not JSON"),
        (
            b'{"allocator":"stiky"}',
            "/config: allocator: there is no allocator 'stiky'; expected one of round_robin, st",
        ),
        (b'{"allocator":7}', "/config: allocator: 7 given; expected a name"),
        (b'{"debounce":5}', "/config: debounce: 5 given; expected an object with quiet_ms, bound_ms, initial_delay_ms"),
        (b'{"debounce":{"quiet":5}}', "/config: debounce: {'quiet': 5} given; expected an object with quiet_ms"),
        (b'{"debounce":{"quiet_ms":-1}}', "/config: debounce.quiet_ms: -1 given; expected milliseconds, 0 or more"),
        (b'{"debounce":{"quiet_ms":true}}', "/config: debounce.quiet_ms: True given"),
        (b'{"static_grace_ms":"60"}', "/config: static_grace_ms: '60' given; expected milliseconds, 0 or more"),
        (b'{"drained":"m1"}', "/config: drained: 'm1' given; expected a list of member or instance ids"),
        (b'{"drained":["a/b"]}', "/config: drained: 'a/b' is not a legal name"),
    ],
)
def test_what_cannot_work_is_refused(data: bytes, told: str) -> None:
    """One line with the path, the field, what stands there and what was expected."""
    with pytest.raises(ProtocolError) as caught:
        DynamicConfig.parse(data, "/config")
    assert str(caught.value).startswith(told)


def test_fields_that_nobody_follows_are_named() -> None:
    """With the one that was meant, where it is near; those that members agree on are known."""
    data = b'{"version":1,"store":"z","mode":"m","auto_offset_reset":"a","drain":[],"debonce":{},"x":1}'
    assert list(DynamicConfig.parse(data, "/config").unknown_field_hints()) == [
        "field 'debonce' means nothing here; did you mean 'debounce'?",
        "field 'drain' means nothing here; did you mean 'drained'?",
        "field 'x' means nothing here; expected allocator, debounce, static_grace_ms, drained",
    ]


def test_drained_ids_that_are_no_members_are_named() -> None:
    """Only those, and no id of a member that went: it ends in the session, so it never comes back."""
    drained = frozenset({"m1", "typo", "eu_wset-1-a", "g_host-1400000000000-100000000000002"})
    assert DynamicConfig(drained=drained).unknown_drained({"m1", "m2", "eu_west-1-a"}) == ("eu_wset-1-a", "typo")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("g_host-1400000000001-100000000000002", True),
        ("g_hsot-1400000000000-100000000000002", True),
        ("g_host-1400000000000-100000000000003", False),
    ],
)
def test_a_drained_id_that_ends_in_the_session_of_a_member_is_named(given: str, named: bool) -> None:
    """It is misspelt before that. An id that ends in another session is that of a member which has gone."""
    dynamic_config = DynamicConfig(drained=frozenset({given}))
    assert dynamic_config.unknown_drained({"m", "g_host-1400000000000-100000000000002"}) == ((given,) if named else ())


OWNED = frozenset({TopicPartition("t", 0)})
HERE = MemberAssignment(3, "g_host-1-a", OWNED)
AWAY = MemberAssignment(3, "g_host-1-b", OWNED, away_since_ms=1_000)


def test_a_static_place_is_kept_from_when_it_is_seen_empty_to_the_end_of_its_grace() -> None:
    """The time stands in the slice, so that the next leader goes on counting."""
    away = absences({"one": HERE, "two": AWAY}, {"two"}, 1_000, 500)
    assert away == {"one": MemberAssignment(3, "g_host-1-a", OWNED, away_since_ms=1_000)}
    assert absences({"two": AWAY}, set(), 1_499, 500) == {"two": AWAY}
    assert absences({"two": AWAY}, set(), 1_500, 500) == {}
    assert next_end_ms({"two": AWAY}, 500) == 1_500
    assert next_end_ms({}, 500) is None


def test_nothing_is_kept_for_who_is_here_or_will_not_come_back() -> None:
    """A present member, a dynamic one, whose name nobody bears again, and a slice that nobody can read."""
    assignments = {"one": HERE, "g_host-1-a": HERE, "garbage": None}
    assert absences(assignments, {"one"}, 0, 500) == {}


def test_a_clock_that_is_ahead_does_not_keep_a_place_for_longer() -> None:
    """A time that lies in the future counts as now."""
    assert absences({"two": AWAY}, set(), 10, 500)["two"].away_since_ms == 10
