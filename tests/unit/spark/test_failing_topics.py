"""The topic that an error of an archive's query is about."""

from __future__ import annotations

import pytest

from kiel_groups.model import TopicPartition
from kiel_groups.spark.archive_job import topic_of

pytestmark = pytest.mark.unit

KNOWN = [TopicPartition("views", 0), TopicPartition("views", 12), TopicPartition("web.orders", 1)]


@pytest.mark.parametrize(
    ("error", "topic"),
    [
        ("views:0 at offset 7: a message that does not match its CRC", "views"),
        (
            "nothing could be read for 122 s; the last reason: web.orders:1 has no leader: LEADER_NOT_AVAILABLE (5)",
            "web.orders",
        ),
        ("views:0: offset 60 is to be read next, and views:12 has another message", "views"),
        ("no broker knows the topic orders; check the name, or create it first", "orders"),
        ("no broker knows the topic orders, clicks; check the name, or create it first", "orders"),
    ],
)
def test_the_topic_of_an_error_is_known(error: str, topic: str) -> None:
    """Errors name a partition, or topics that no longer exist."""
    assert topic_of(error, KNOWN, ["orders", "clicks"]) == topic


@pytest.mark.parametrize(
    "error",
    [
        "no broker answered: views:9092: cannot connect",
        "views:0 and web.orders:1 have no leader",
        "my-views:0 at offset 7: a message that does not match its CRC",
        "views:1 at offset 7: a message that does not match its CRC",
        "no broker knows the topic orders, veiws; check the name, or create it first",
        "Spark failed: No space left on device",
    ],
)
def test_other_errors_are_about_no_single_topic(error: str) -> None:
    """A host may have the name of a topic. A topic that has never existed is a mistake."""
    assert topic_of(error, KNOWN, ["orders"]) is None
