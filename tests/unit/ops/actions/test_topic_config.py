"""Changes of a topic's settings: what is legal through ZooKeeper, and what a change makes of the present settings."""

from __future__ import annotations

from typing import Any

import pytest

from kiel_groups.errors import BrokerConnectionError, ConfigError
from kiel_groups.ops.actions.topic_config import TopicConfigChange, TopicSetting, apply_by_brokers, check_settings
from kiel_groups.wire.error_codes import NO_ERROR
from kiel_groups.wire.topic_requests import OF_TOPIC, ConfigAnswer, ConfigEntry, DescribeConfigsRequest

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "legal", "illegal"),
    [
        ("cleanup.policy", ["delete", "compact"], ["", "Delete", "compact,delete"]),
        (
            "retention.ms",
            ["0", "3600000", str((1 << 63) - 1)],
            ["-1", "1h", "1_0", "1.5", "", str(1 << 63), "\u0663"],
        ),
        ("retention.bytes", ["-1", "0"], ["-2", "--1"]),
        ("max.message.bytes", [str((1 << 31) - 1)], [str(1 << 31)]),
        ("min.cleanable.dirty.ratio", ["0", "0.5", "1"], ["1.01", "-0.1", "nan", "half"]),
        ("unclean.leader.election.enable", ["true", "false"], ["True", "1"]),
    ],
)
def test_values_that_brokers_of_0_8_could_not_read_are_refused(name: str, legal: list[str], illegal: list[str]) -> None:
    """A broker would fail to read such a value from ZooKeeper; the error says what was expected."""
    for value in legal:
        check_settings({name: value})
    for value in illegal:
        with pytest.raises(ConfigError, match=rf"^{name}: .* given; expected "):
            check_settings({name: value})


@pytest.mark.parametrize(("name", "hint"), [("retention.mss", "did you mean 'retention.ms'"), ("x", "known: cleanup")])
def test_an_unknown_name_is_refused_with_a_hint(name: str, hint: str) -> None:
    """Brokers of 0.8 ignore a name that they do not know."""
    with pytest.raises(ConfigError, match=hint):
        check_settings({name: "1"})


def test_a_change_keeps_the_other_settings_of_the_topic() -> None:
    """Settings of brokers are not the topic's own, whatever they are."""
    settings = {
        "retention.ms": TopicSetting("5", "topic"),
        "segment.ms": TopicSetting("6", "topic"),
        "flush.ms": TopicSetting("7", "default"),
    }
    change = TopicConfigChange("t", settings, {"segment.ms": "8", "flush.ms": "9"}, ("retention.ms",))
    change.check()
    assert change.before == {"retention.ms": "5", "segment.ms": "6"}
    assert change.after == {"flush.ms": "9", "segment.ms": "8"}


def test_only_a_setting_of_the_topic_itself_can_be_removed() -> None:
    """The error names those that it has."""
    change = TopicConfigChange("t", {"flush.ms": TopicSetting("7", "default")}, {}, ("flush.ms",))
    with pytest.raises(ConfigError, match=r"topic 't' has no setting flush\.ms of its own; it has none"):
        change.check()


class LateBrokers:
    """Two brokers that have made a change: the first one shows it late, and the second one cannot be asked."""

    brokers = (1, 2)

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def knows(self, _: object) -> bool:
        return True

    async def ask_any(self, _: object) -> tuple[ConfigAnswer, ...]:
        self.asked.append("change")
        return (ConfigAnswer(NO_ERROR, ""),)

    async def ask(self, node_id: int, request: DescribeConfigsRequest) -> tuple[ConfigAnswer, ...]:
        self.asked.append(node_id)
        if node_id == 2:
            raise BrokerConnectionError("cannot connect")
        value = "1" if self.asked.count(1) < 3 else "2"
        return (ConfigAnswer(NO_ERROR, "", {"flush.ms": ConfigEntry(value, OF_TOPIC)}),)


async def test_a_change_is_made_when_all_brokers_show_it() -> None:
    """The next command would show, and before Kafka 2.3 store, the former settings."""
    change = TopicConfigChange("t", {"flush.ms": TopicSetting("1", "topic")}, {"flush.ms": "2"}, ())
    session: Any = LateBrokers()
    await apply_by_brokers(session, change)
    assert session.asked == ["change", 1, 1, 1, 2]
