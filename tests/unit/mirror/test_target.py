"""The claims of mirrors."""

from __future__ import annotations

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.mirror.topics import refuse
from kiel_groups.mirror.values import (
    CLAIMS_TOPIC,
    Claim,
    MirroredTopic,
    check_dead_letters,
    check_mirror,
    topic_problems,
)

pytestmark = pytest.mark.unit

CLAIMS = {"copy.a": Claim("m", "a", "old-1:9092,old-2")}


def check_claims(mirror: str, source: str, topic: str, target: str) -> None:
    check_mirror(CLAIMS, mirror, source)
    refuse(topic_problems(CLAIMS, mirror, [MirroredTopic(topic, target, 1, {})], {}))


@pytest.mark.parametrize(
    ("mirror", "source", "topic", "target"),
    [("m", "old-3, old-2:9092", "a", "copy.a"), ("m", "old-1", "b", "b"), ("other", "elsewhere", "a", "b")],
    ids=["an address in common", "another topic", "another mirror"],
)
def test_a_claim_is_granted(mirror: str, source: str, topic: str, target: str) -> None:
    """A mirror keeps its topics when the addresses of its source change in part."""
    check_claims(mirror, source, topic, target)


@pytest.mark.parametrize(
    ("mirror", "source", "target", "expected"),
    [
        ("other", "old-1", "copy.a", "the target topic copy.a is the mirror of a by the connector 'm'"),
        ("m", "elsewhere:9092", "copy.a", "the connector 'm' has mirrored a of old-1:9092,old-2 to copy.a"),
        ("m", "elsewhere:9092", "b", "the connector 'm' has mirrored a of old-1:9092,old-2 to copy.a"),
        ("m", "old-1", "b", "a would be b on the target, and the connector 'm' has mirrored it to copy.a"),
        ("claims", "old-1", "b", "name: 'claims' given; kiel-mirror-claims has the claims of all mirrors"),
        ("m", "old-1", "kiel-mirror-m", "target.topic.format: a would be kiel-mirror-m on the target"),
    ],
    ids=[
        "another mirror",
        "another source",
        "another source and target topic",
        "another format",
        "reserved name",
        "own topic",
    ],
)
def test_a_claim_is_refused(mirror: str, source: str, target: str, expected: str) -> None:
    """
    A connector of the same name with another source would take the checkpoints of the first one for its own. Of two
    names of a topic, commands such as ``mirror reverse`` would not know which one is meant.
    """
    with pytest.raises(ConfigError, match=expected):
        check_claims(mirror, source, "a", target)


@pytest.mark.parametrize("topic", ["mirrored", "b", CLAIMS_TOPIC])
def test_dead_letters_have_a_topic_of_their_own(topic: str) -> None:
    """In a topic that is a mirror, they would be records that the source does not have."""
    claims, topics = {"mirrored": Claim("other", "x", "old:9092")}, [MirroredTopic("a", "b", 1, {})]
    with pytest.raises(ConfigError, match=rf"dead\.letter\.topic: '{topic}' given; mirrors write to this topic"):
        check_dead_letters(topic, claims, topics)
    check_dead_letters("", claims, topics)
    check_dead_letters("a", claims, topics)
