"""
What works on which release of Kafka: each cell is tried on real servers, and the README's table is what was found.

``python -m tests.integration.matrix`` tries everything and writes the table into the README.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from kiel_groups.clients import Producer
from kiel_groups.embedded import Cluster
from kiel_groups.embedded.releases import KAFKAS
from kiel_groups.errors import ConfigError, KielGroupsError
from tests.integration.members import eventually, group_of, stored_offsets, zookeeper

__all__ = ["CODECS", "STORES", "RELEASES", "try_codec", "try_store", "table_in_readme"]

CODECS = ("none", "gzip", "snappy", "lz4")
STORES = ("zookeeper", "broker-v0")
RELEASES = tuple(KAFKAS)
README = Path(__file__).parents[2] / "README.rst"
YES, NO = "yes", "–"
_FIELDS = ("Kafka", *CODECS, *STORES)
_WIDTHS = (8, 5, 5, 7, 5, 10, 10)


async def produced(cluster: Cluster, topic: str, codec: str, count: int) -> list[bytes]:
    """Produce values as compressed sets; returns them."""
    values = [f"{codec} {number}".encode() for number in range(count)]
    compression = None if codec == "none" else codec
    async with Producer(cluster.brokers, compression=compression, batch_size=10, linger_ms=5, retries=2) as producer:
        await asyncio.gather(*(producer.produce(topic, value) for value in values))
    return values


async def try_codec(cluster: Cluster, topic: str, group_name: str, codec: str) -> bool:
    """Whether a group consumes what a producer compressed, every record once; False where the broker refuses it."""
    await cluster.create_topic(topic, 2)
    try:
        values = await produced(cluster, topic, codec, 40)
    except KielGroupsError:
        return False
    async with group_of(cluster, group_name, [topic]) as group:
        await group.join()
        assert await group.delivered(values) == Counter(values)
    return True


async def try_store(cluster: Cluster, topic: str, group_name: str, store: str) -> bool:
    """Whether members consume, hand over and commit with a store; False where that is refused from the start."""
    await cluster.create_topic(topic, 4)
    values = await produced(cluster, topic, "none", 80)
    async with group_of(cluster, group_name, [topic], store=store, auto_commit_interval_ms=100) as group:
        try:
            first = await group.join()
        except ConfigError:
            group.members.clear()
            return False
        await group.delivered(values)
        await group.join()
        await group.balanced(topic, 4)
        await group.leave(first)
        more = await produced(cluster, topic, "none", 80)
        await eventually(lambda: Counter(group.values) == Counter([*values, *more]), "every record is delivered once")
    with zookeeper(cluster) as client:
        assert sum(stored_offsets(client, group_name, topic).values()) == 160
    return True


def table(found: Mapping[str, Mapping[str, bool]]) -> str:
    """The table in reStructuredText."""
    rule = "  ".join("=" * width for width in _WIDTHS)
    rows = [_FIELDS] + [
        (release, *(YES if cells[name] else NO for name in (*CODECS, *STORES))) for release, cells in found.items()
    ]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, _WIDTHS, strict=True)).rstrip() for row in rows]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])


def table_in_readme() -> dict[str, dict[str, bool]]:
    """What the README says."""
    rows = re.findall(rf"^(0\.\d+\.\d+\.?\d*) +((?:(?:{YES}|{NO}) *)+)$", README.read_text(encoding="utf-8"), re.M)
    return {
        release: {name: cell == YES for name, cell in zip((*CODECS, *STORES), cells.split(), strict=True)}
        for release, cells in rows
    }


async def find_out() -> dict[str, dict[str, bool]]:
    """Try everything."""
    found: dict[str, dict[str, bool]] = {}
    for release in RELEASES:
        async with Cluster(kafka=release) as cluster:
            cells = found.setdefault(release, {})
            for codec in CODECS:
                cells[codec] = await try_codec(cluster, f"codec-{codec}", f"codec-{codec}", codec)
            for store in STORES:
                cells[store] = await try_store(cluster, f"store-{store}", f"store-{store}", store)
    return found


def write_readme(found: Mapping[str, Mapping[str, bool]]) -> None:
    text = README.read_text(encoding="utf-8")
    old = re.search(r"(?<=\.\. matrix: begin\n\n).*?(?=\n\n\.\. matrix: end)", text, re.S)
    assert old is not None, "the README has no place for the table"
    README.write_text(text[: old.start()] + table(found) + text[old.end() :], encoding="utf-8")


if __name__ == "__main__":
    write_readme(asyncio.run(find_out()))
