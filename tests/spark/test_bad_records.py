"""Damaged messages: what a task reads instead of them, and what an archive records of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow.parquet import read_table
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from kiel_groups.embedded import Cluster
from kiel_groups.errors import ConfigError, DamagedRecordError
from kiel_groups.spark.side_tables import QUARANTINE, SideRow, read_rows
from tests.helpers.spark.queries import batch_tasks, filled
from tests.proxies import KafkaProxy, damaging

pytestmark = pytest.mark.spark

Unique = Callable[[str], str]

VALUES = [b"0", b"spoilt?", b"2", b"spoilt?", b"4"]


@pytest.fixture
def topic(cluster_39: Cluster, unique: Unique) -> str:
    """Return the name of a topic of one partition with five records, of which a proxy damages two."""
    return filled(cluster_39, unique("topic"), 1, VALUES)


@pytest.fixture
def damaged(cluster_39: Cluster) -> Iterator[KafkaProxy]:
    """Provide a proxy that damages records as a failing disk does."""
    with KafkaProxy(cluster_39.brokers[0], damaging(b"spoilt?")) as proxy:
        yield proxy


COLUMNS = {
    "offset": LongType(),
    "topic": StringType(),
    "value": BinaryType(),
    "error": StringType(),
    "raw": BinaryType(),
}


def read(proxy: KafkaProxy, cluster: Cluster, topic: str, *names: str, **options: str) -> list[dict[str, Any]]:
    """Read some columns, by default the offsets, through a proxy."""
    reader, tasks = batch_tasks(
        cluster,
        StructType([StructField(name, COLUMNS[name]) for name in names or ["offset"]]),
        **{"kafka_bootstrap_servers": proxy.address, "subscribe": topic, "kiel_onBadRecord": "skip", **options},
    )
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


def test_a_damaged_message_fails_its_task_by_default(cluster_39: Cluster, topic: str, damaged: KafkaProxy) -> None:
    """The error begins with topic, partition, offset and cause, and names the options."""
    with pytest.raises(DamagedRecordError) as caught:
        read(damaged, cluster_39, topic, kiel_onBadRecord="fail")
    assert str(caught.value) == (
        f"{topic}:0 at offset 1: a message that does not match its CRC; to pass it, set kiel.onBadRecord to 'skip',"
        " or to 'row' for a row without a value"
    )


def test_damaged_messages_are_skipped_or_rows(
    cluster_39: Cluster, topic: str, damaged: KafkaProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """
    Skipped messages are in the log. Rows of damaged messages have a null value, and on request the error and the bytes.
    """
    assert [row["offset"] for row in read(damaged, cluster_39, topic)] == [0, 2, 4]
    assert f"{topic}:0: skipping offset 1: {topic}:0 at offset 1: a message that does not match" in caplog.text
    names = ["raw", "offset", "value", "error", "topic"]
    rows = read(damaged, cluster_39, topic, *names, kiel_onBadRecord="row")
    assert [(row["offset"], row["value"], row["topic"]) for row in rows] == [
        (number, None if value == b"spoilt?" else value, topic) for number, value in enumerate(VALUES)
    ]
    assert (rows[0]["error"], rows[0]["raw"]) == (None, None)
    assert rows[3]["error"] == f"{topic}:0 at offset 3: a message that does not match its CRC"
    assert rows[3]["raw"].endswith(b"spoilt>")


@pytest.mark.parametrize("choice", ["skip", "quarantine"])
def test_an_archive_records_damaged_messages(
    cluster_39: Cluster, topic: str, damaged: KafkaProxy, tmp_path: Path, choice: str
) -> None:
    """The side table has their offsets and reasons once, even if a task is repeated, and on request their bytes."""
    archive = f"file://{tmp_path}"
    for _ in range(2):
        rows = read(damaged, cluster_39, topic, kiel_onBadRecord=choice, kiel_archive_output=archive)
        assert [row["offset"] for row in rows] == [0, 2, 4]
    found = read_rows(archive, QUARANTINE)
    assert found == [
        SideRow(
            topic=topic,
            partition=0,
            offset=offset,
            end_offset=offset + 1,
            reason="a message that does not match its CRC",
            found_at=row.found_at,
        )
        for offset, row in zip((1, 3), found, strict=True)
    ]
    (table,) = map(read_table, (tmp_path / QUARANTINE).iterdir())
    raw = table["raw"].to_pylist()
    assert [each is not None and each.endswith(b"spoilt>") for each in raw] == [choice == "quarantine"] * 2


def test_quarantine_needs_an_archive(cluster_39: Cluster) -> None:
    """The option has three values; the fourth one belongs to archives."""
    for wrong in ("quarantine", "ignore"):
        with pytest.raises(ConfigError, match=r"kiel\.onBadRecord: .* expected fail"):
            batch_tasks(cluster_39, subscribe="views", kiel_onBadRecord=wrong)
