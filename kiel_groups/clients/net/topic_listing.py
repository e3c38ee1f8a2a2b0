"""
Topics as brokers list them, and the decision whether a metadata request may name them.

A request that names a topic creates the topic if it was deleted, on brokers with ``auto.create.topics.enable``. A
request that names none creates none, but is answered for all topics of the cluster, which costs every broker and client
of a large one.

A topic may still be created again if it is deleted within ``NAMED_FOR_S`` after the brokers have listed it, and if the
client asks by name for another reason, such as a broken connection, before a broker has denied that it knows the topic,
or its partitions.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

__all__ = ["ListedTopic", "NAMED_FOR_S", "TopicListing"]

#: How long after a listing of all topics requests may name them. In an outage, a client asks several times a second.
NAMED_FOR_S = 5.0


@dataclass(frozen=True, slots=True)
class ListedTopic:
    """A topic as last reported: its ``partitions``, ascending, and the leader of each (None if there is none)."""

    partitions: tuple[int, ...]
    leaders: dict[int, int | None]
    seen_s: float


class TopicListing:
    """Whether the last listing of all topics is recent enough to name them, and was not contradicted since."""

    def __init__(self) -> None:
        self._asked_s = self._doubted_s = float("-inf")

    @property
    def is_reliable(self) -> bool:
        """Whether the topics of the last listing may be named."""
        return self._doubted_s < self._asked_s > time.monotonic() - NAMED_FOR_S

    def received(self, asked_s: float) -> None:
        """Note a listing of all topics, which was requested at this monotonic time."""
        self._asked_s = asked_s

    def doubt(self) -> None:
        """Note that a broker has denied that it knows a topic, or its partitions."""
        self._doubted_s = time.monotonic()
