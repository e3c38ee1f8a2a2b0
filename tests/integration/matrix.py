"""
Codecs and stores that work on each release of Kafka: every cell of ``docs/matrix.rst`` is tried on real servers.

``python -m tests.integration.matrix`` tries all cells and writes the table into that page.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeAlias

from kiel_groups.clients import Producer
from kiel_groups.embedded import Cluster
from kiel_groups.errors import BrokerError, ConfigError
from tests.helpers.cluster_data import committed as in_zookeeper
from tests.helpers.members import Group, group_of
from tests.helpers.offsets_in_kafka import OffsetsInKafka
from tests.helpers.servers import EARLY_KAFKAS
from tests.helpers.waiting import eventually

__all__ = ["CODECS", "STORES", "RELEASES", "Works", "try_store", "table_in_docs"]

CODECS = ("none", "gzip", "snappy", "lz4")
STORES = ("zookeeper", "broker-v0", "broker-v1")
RELEASES = EARLY_KAFKAS
PAGE = Path(__file__).parents[2] / "docs" / "matrix.rst"
PARTITIONS = 2
RECORDS = 40
NOTHING = "–"
_WIDTHS = (8, 10, 23, 23, 23)

Values: TypeAlias = dict[str, list[bytes]]


@dataclass(frozen=True, slots=True)
class Works:
    """By step: the codecs with which a group completed the step and delivered every record exactly once."""

    consume: frozenset[str]
    hand_over: frozenset[str]
    commit: frozenset[str]


async def try_store(cluster: Cluster, store: str, unique: Callable[[str], str]) -> Works:
    """
    Run a group of two members that consumes, rebalances and commits, with one topic for each codec.

    No step works for a codec or a store that a broker refuses. A step that takes more than half a minute has failed.
    """
    topics = {codec: unique(codec) for codec in CODECS}
    for topic in topics.values():
        await cluster.create_topic(topic, PARTITIONS)
    sent = {codec: values for codec, topic in topics.items() if (values := await produced(cluster, topic, codec, 0))}
    topics = {codec: topics[codec] for codec in sent}
    name = unique("group")
    async with group_of(cluster, name, topics.values(), store=store, auto_commit_interval_ms=100) as group:
        try:
            first = await group.join()
        except ConfigError:
            group.members.clear()
            return Works(frozenset(), frozenset(), frozenset())
        consumed = await codecs_done(sent, lambda codec: once(group, sent[codec]))
        successor = await group.join()
        for topic in topics.values():
            await group.balanced(topic, PARTITIONS)
        await group.leave(first)
        for codec, topic in topics.items():
            sent[codec] += await produced(cluster, topic, codec, RECORDS)
        late = {codec: set(values[RECORDS:]) for codec, values in sent.items()}
        moved = await codecs_done(sent, lambda codec: once(group, sent[codec]) and late[codec] <= set(successor.values))
    committed = {codec: await committed_in(cluster, store, name, topic) for codec, topic in topics.items()}
    return Works(consumed, moved, frozenset(codec for codec, total in committed.items() if total == 2 * RECORDS))


async def committed_in(cluster: Cluster, store: str, group: str, topic: str) -> int:
    """Return the number of records of a topic that a group has committed, after its members have left."""
    if store == "broker-v1":
        return sum((await OffsetsInKafka(cluster, group, topic, PARTITIONS).offsets()).values())
    return await asyncio.to_thread(in_zookeeper, cluster, group, topic)


async def produced(cluster: Cluster, topic: str, codec: str, first: int) -> list[bytes]:
    """Produce values as compressed sets and return the values, or [] if the broker refuses the codec."""
    values = [f"{codec} {number}".encode() for number in range(first, first + RECORDS)]
    compression = None if codec == "none" else codec
    async with Producer(cluster.brokers, compression=compression, batch_size=10, linger_ms=5, retries=2) as producer:
        try:
            await asyncio.gather(*(producer.produce(topic, value) for value in values))
        except BrokerError:
            return []
    return values


def once(group: Group, values: Iterable[bytes]) -> bool:
    """Return whether each of these values was delivered exactly once."""
    counts = Counter(group.values)
    return all(counts[value] == 1 for value in values)


async def codecs_done(codecs: Iterable[str], done: Callable[[str], bool]) -> frozenset[str]:
    """Wait, for a limited time, until ``done`` is true for all codecs, and return the codecs for which it is true."""
    with suppress(AssertionError):
        await eventually(lambda: all(map(done, codecs)), "it works with every codec")
    return frozenset(filter(done, codecs))


def table(found: Mapping[tuple[str, str], Works]) -> str:
    """Return the table in reStructuredText."""
    rule = "  ".join("=" * width for width in _WIDTHS)
    heads = ("Kafka", "store", *(field.name.replace("_", " ") for field in fields(Works)))
    rows = [(*key, *(_cell(getattr(works, field.name)) for field in fields(Works))) for key, works in found.items()]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, _WIDTHS, strict=True)).rstrip()
        for row in (heads, *rows)
    ]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])


def _cell(codecs: frozenset[str]) -> str:
    return ", ".join(codec for codec in CODECS if codec in codecs) or NOTHING


def table_in_docs() -> dict[tuple[str, str], Works]:
    """Return the table of the page by release and store."""
    rows = (re.split(r" {2,}", line) for line in _table_text().splitlines()[3:-1])
    return {
        (release, store): Works(*(frozenset(cell.split(", ")) - {NOTHING} for cell in cells))
        for release, store, *cells in rows
    }


def _table_text() -> str:
    found = re.search(r"(?<=\.\. matrix: begin\n\n).*?(?=\n\n\.\. matrix: end)", PAGE.read_text("utf-8"), re.S)
    assert found is not None, "the page has no markers for the table"
    return found[0]


async def try_all() -> dict[tuple[str, str], Works]:
    """Try each store on each release."""
    found: dict[tuple[str, str], Works] = {}
    for release in RELEASES:
        async with Cluster(kafka=release) as cluster:
            for store in STORES:
                found[release, store] = await try_store(cluster, store, f"{{}}-{store}".format)
    return found


if __name__ == "__main__":
    written = PAGE.read_text("utf-8").replace(_table_text(), table(asyncio.run(try_all())))
    PAGE.write_text(written, encoding="utf-8")
