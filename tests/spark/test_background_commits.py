"""Commits in the background: planning does not wait for them, and their failures reach the query."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiel_groups.errors import BrokerError, RequestTimeoutError
from kiel_groups.model import TopicPartition
from kiel_groups.spark import offsets as group_offsets
from kiel_groups.spark.checkpoint import Positions, query_id
from kiel_groups.spark.drivers import group_name
from kiel_groups.spark.offsets import GroupOffsets
from kiel_groups.spark.options import ReadOptions
from kiel_groups.sync import LoopThread
from kiel_groups.wire.error_codes import NO_ERROR

pytestmark = pytest.mark.spark

HERE = TopicPartition("clicks", 0)
LEAST = {"kafka.bootstrap.servers": "one", "subscribe": "clicks"}


class SlowBrokers:
    """Brokers that store offsets; each commit waits for ``may_store``."""

    def __init__(self) -> None:
        self.stored: dict[TopicPartition, int] = {}
        self.commits: list[dict[TopicPartition, int]] = []
        self.asked, self.may_store = threading.Semaphore(0), threading.Semaphore(0)
        self.refuse = False

    async def check(self, *_: object) -> None:
        """Offsets can be stored."""

    async def fetch(self, cluster: object, group: str, partitions: Collection[TopicPartition]) -> Mapping[Any, int]:
        return {each: self.stored[each] for each in partitions if each in self.stored}

    async def commit(self, cluster: object, metrics: object, group: str, offsets: Any, note: str) -> Mapping[Any, Any]:
        self.asked.release()
        await asyncio.to_thread(self.may_store.acquire, timeout=10)
        if self.refuse:
            raise BrokerError("the broker does not want to")
        self.commits.append(offsets)
        self.stored |= offsets
        return dict.fromkeys(offsets, NO_ERROR)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> SlowBrokers:
    found = SlowBrokers()
    monkeypatch.setattr(group_offsets, "check_offset_api", found.check)
    monkeypatch.setattr(group_offsets, "fetch_offsets", found.fetch)
    monkeypatch.setattr(group_offsets, "commit_offsets", found.commit)
    return found


@pytest.fixture
def made() -> Iterator[Callable[..., GroupOffsets]]:
    with LoopThread("test") as loop:
        view: Any = SimpleNamespace(loop=loop, commit_cluster=None, timeout_s=10.0)
        yield lambda **options: GroupOffsets(view, ReadOptions.parse({**LEAST, **options}, streaming=True))


def test_the_newest_offsets_are_next(brokers: SlowBrokers, made: Callable[..., GroupOffsets]) -> None:
    """While a commit runs, further offsets replace those that wait."""
    offsets = made()
    offsets.commit_soon("g", {HERE: 1})
    brokers.asked.acquire(timeout=10)
    for number in (2, 3, 4):
        offsets.commit_soon("g", {HERE: number})
    assert brokers.commits == []
    brokers.may_store.release(2)
    offsets.flush()
    assert brokers.commits == [{HERE: 1}, {HERE: 4}]


def test_offsets_wait_until_the_interval_is_over(
    brokers: SlowBrokers, made: Callable[..., GroupOffsets], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first offsets are committed at once. Those of the next batches wait together, and need no flush."""
    monkeypatch.setattr(group_offsets, "COMMIT_INTERVAL_S", 0.5)
    offsets = made()
    brokers.may_store.release(2)
    began_s = time.monotonic()
    for number in (1, 2, 3):
        offsets.commit_soon("g", {HERE: number})
        if number == 1:
            assert brokers.asked.acquire(timeout=10)
    assert brokers.asked.acquire(timeout=10)
    assert time.monotonic() - began_s >= 0.5
    offsets.flush()
    assert brokers.commits == [{HERE: 1}, {HERE: 3}]


def test_a_recreated_log_is_committed_though_its_offsets_are_lower(
    brokers: SlowBrokers, made: Callable[..., GroupOffsets]
) -> None:
    """What ``forget`` says is about the offsets of later calls, even if a commit of the old log is still running."""
    offsets = made()
    brokers.may_store.release(3)
    offsets.commit_soon("g", {HERE: 100})
    offsets.forget([HERE])
    offsets.commit_soon("g", {HERE: 2})
    offsets.flush()
    offsets.commit_soon("g", {HERE: 1})
    offsets.flush()
    assert brokers.stored == {HERE: 2}


def test_a_failure_is_raised_by_the_next_call_on_demand(
    brokers: SlowBrokers, made: Callable[..., GroupOffsets], caplog: pytest.LogCaptureFixture
) -> None:
    """By default it is logged. With failOnCommitError the next call raises it, and the one after that tries again."""
    brokers.refuse = True
    brokers.may_store.release(9)
    lenient, strict = made(), made(failOnCommitError="true")
    lenient.commit_soon("g", {HERE: 1})
    lenient.flush()
    assert "the offsets of this query are not committed" in caplog.text
    strict.commit_soon("g", {HERE: 1})
    cast(Any, strict)._view.loop.run(strict._settled())
    with pytest.raises(BrokerError, match="does not want to"):
        strict.commit_soon("g", {HERE: 2})
    brokers.refuse = False
    strict.commit_soon("g", {HERE: 2})
    strict.flush()
    assert brokers.stored == {HERE: 2}


def test_a_commit_without_an_answer_names_its_group(brokers: SlowBrokers, made: Callable[..., GroupOffsets]) -> None:
    """A broker that does not answer in time is an error of this package, not a bare TimeoutError."""
    offsets = made(failoncommiterror="true")
    offsets._view.timeout_s = 0.1  # type: ignore[misc]
    with pytest.raises(RequestTimeoutError, match=r"no broker has stored the offsets of group g in 0\.1 s"):
        offsets.commit("g", {HERE: 5})
    brokers.may_store.release()


def test_a_group_has_the_id_that_spark_has_given_to_the_query(tmp_path: Path) -> None:
    """Spark writes it to the checkpoint before it creates a source; another prefix may be chosen."""
    assert query_id(tmp_path) is None
    spark_id = "f1e2d3c4-0000-4000-8000-00000000000a"
    (tmp_path / "metadata").write_text(json.dumps({"id": spark_id}), encoding="utf-8")
    assert query_id(tmp_path) == spark_id
    names = [
        group_name(ReadOptions.parse({**LEAST, **options}, streaming=True), Positions(query=spark_id))
        for options in ({}, {"groupIdPrefix": "etl"}, {"kafka.group.id": "g"})
    ]
    assert names == [f"kiel-spark-{spark_id}", f"etl-{spark_id}", "g"]
