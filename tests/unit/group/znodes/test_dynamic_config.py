"""The settings of a group that operators may change while the group runs."""

from __future__ import annotations

import json

import pytest

from kiel_groups.config import DebounceConfig
from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.group_settings import DynamicConfig, PlanRequest, forget_departed

pytestmark = pytest.mark.unit

OWN = DebounceConfig(quiet_ms=100, bound_ms=1_000, initial_delay_ms=300)


def test_an_absent_field_means_the_leaders_own_setting() -> None:
    """
    If a field is absent, the leader's own setting applies. Settings that members have to agree on are in the same
    znode, and are ignored.
    """
    dynamic_config = DynamicConfig.parse(b'{"version":1,"store":"zookeeper","mode":"cooperative"}', "/config")
    assert dynamic_config == DynamicConfig()
    assert dynamic_config.debounced(OWN) == OWN


def test_a_field_takes_precedence() -> None:
    """A field in the znode overrides the leader's own setting, even if its value is 0. Other settings do not change."""
    data = b'{"allocator":"sticky","debounce":{"quiet_ms":0},"static_grace_ms":5,"drained":["m1"]}'
    dynamic_config = DynamicConfig.parse(data, "/config")
    racks = DynamicConfig.parse(b'{"broker_racks":{"2":"west","1":"east"}}', "/config").broker_racks
    assert racks == ((1, "east"), (2, "west"))
    assert (dynamic_config.allocator, dynamic_config.static_grace_ms, dynamic_config.drained) == (
        "sticky",
        5,
        frozenset({"m1"}),
    )
    assert dynamic_config.debounced(OWN) == DebounceConfig(quiet_ms=0, bound_ms=1_000, initial_delay_ms=300)
    whole = DynamicConfig.parse(b'{"debounce":{"quiet_ms":1,"bound_ms":2,"initial_delay_ms":3}}', "/config")
    assert whole.debounced(OWN) == DebounceConfig(quiet_ms=1, bound_ms=2, initial_delay_ms=3)


@pytest.mark.parametrize("reason", ["x", "x" * 200])
def test_a_request_for_a_plan_has_its_time_and_its_reason(reason: str) -> None:
    """Operators ask for a plan with a reason of 1 to 200 characters. A leader answers each time once."""
    data = json.dumps({"rebalance": {"at": 7, "reason": reason}}).encode()
    assert DynamicConfig.parse(data, "/config").request == PlanRequest(7, reason)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[", "/config: not JSON"),
        (
            b'{"allocator":"stiky"}',
            "/config: allocator: there is no allocator 'stiky'; expected one of round_robin, st",
        ),
        (b'{"allocator":7}', "/config: allocator: 7 given; expected a name"),
        (
            b'{"allocator":"os:getpid"}',
            "/config: allocator: 'os:getpid' given; expected a name: any process of the g",
        ),
        (b'{"debounce":5}', "/config: debounce: 5 given; expected an object with quiet_ms, bound_ms, initial_delay_ms"),
        (b'{"debounce":{"quiet":5}}', "/config: debounce: {'quiet': 5} given; expected an object with quiet_ms"),
        (b'{"debounce":{"quiet_ms":-1}}', "/config: debounce.quiet_ms: -1 given; expected milliseconds, 0 or more"),
        (b'{"debounce":{"quiet_ms":true}}', "/config: debounce.quiet_ms: True given"),
        (b'{"static_grace_ms":"60"}', "/config: static_grace_ms: '60' given; expected milliseconds, 0 or more"),
        (b'{"drained":"m1"}', "/config: drained: 'm1' given; expected a list of member or instance ids"),
        (b'{"drained":["a/b"]}', "/config: drained: 'a/b' is not a legal name"),
        (b'{"broker_racks":["east"]}', "/config: broker_racks: ['east'] given; expected an object of broker ids"),
        (b'{"broker_racks":{"one":"east"}}', "/config: broker_racks: {'one': 'east'} given; expected an object of"),
        (b'{"rebalance":5}', "/config: rebalance: 5 given; expected an object with 'at' and 'reason'"),
        (b'{"rebalance":{"at":"5","reason":"x"}}', "/config: rebalance: {'at': '5', 'reason': 'x'} given; expected an"),
        (b'{"rebalance":{"at":5}}', "/config: rebalance: {'at': 5} given; expected an object with 'at' and 'reason'"),
        (b'{"rebalance":{"at":5,"reason":"a\\nb"}}', "/config: reason: 'a\\nb' given; expected 1 to 200 printable"),
        (b'{"rebalance":{"at":5,"reason":"%s"}}' % (b"x" * 201), "/config: reason: 'xxx"),
        (b'{"rebalance":{"at":5,"reason":""}}', "/config: reason: '' given; expected 1 to 200 printable characters"),
        (b'{"broker_racks":{"1":7}}', "/config: broker_racks.1: 7 given; expected the name of a rack"),
    ],
)
def test_an_invalid_field_is_refused(data: bytes, message: str) -> None:
    """An invalid field is refused with an error that has the path, the field, its value and what was expected."""
    with pytest.raises(ProtocolError) as caught:
        DynamicConfig.parse(data, "/config")
    assert str(caught.value).startswith(message)


def test_unknown_fields_are_named() -> None:
    """An unknown field is named, with a hint about the field that was probably meant, or about all fields."""
    data = b'{"version":1,"store":"z","mode":"m","auto_offset_reset":"a","drain":[],"debonce":{},"x":1}'
    assert list(DynamicConfig.parse(data, "/config").unknown_field_hints()) == [
        "field 'debonce' means nothing here; did you mean 'debounce'?",
        "field 'drain' means nothing here; did you mean 'drained'?",
        "field 'x' means nothing here; expected allocator, debounce, static_grace_ms, drained, broker_racks",
    ]


def test_misspelt_drained_ids_are_named() -> None:
    """
    A misspelt drained id is named. The id of a departed member is not: it ends in a session id, so it is harmless.
    """
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
def test_a_drained_id_with_the_session_of_a_member_is_named(given: str, named: bool) -> None:
    """
    A drained id that ends in a present member's session, but differs from its id, is misspelt and named. An id with
    another session is a departed member's.
    """
    dynamic_config = DynamicConfig(drained=frozenset({given}))
    members = {"m", "g_host-1400000000000-100000000000002"}
    assert dynamic_config.unknown_drained(members) == ((given,) if named else ())
    # The leader forgets a departed member, and keeps what may be a mistake.
    fields = {"drained": [given, "shelf"], "later": 1}
    assert forget_departed(fields, members) == fields | {"drained": [given, "shelf"] if named else ["shelf"]}
    assert forget_departed({"drained": [given]}, members) == ({"drained": [given]} if named else {})
