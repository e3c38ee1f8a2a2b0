"""
Mirror a topic with a worker of kiel-groups, and report how many records the target has stored.

Arguments: ZooKeeper and broker of the source, the number of its records, the bytes of a value, the connector's
configuration as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import ClassVar

from tornado.httpclient import AsyncHTTPClient

from benchmarks.members.produced import report
from kiel_groups.mirror.connector import MirrorConnector
from kiel_groups.mirror.task import MirrorTask
from kiel_groups.rest.settings import RestSettings
from kiel_groups.workers.execution.worker import Worker
from kiel_groups.workers.execution.worker_settings import WorkerSettings
from kiel_groups.workers.plugins.interfaces import SourcePosition


class Progress:
    """Counts the records that all tasks have mirrored. It reports the first batch, and the last one."""

    def __init__(self, records: int, value_bytes: int) -> None:
        self._records, self._bytes = records, value_bytes
        self._lock = threading.Lock()
        self._offsets: dict[str, int] = {}

    def add(self, positions: Sequence[SourcePosition]) -> None:
        with self._lock:
            was = sum(self._offsets.values())
            for each in positions:
                self._offsets[str(each.source_partition)] = each.source_offset["offset"]
            stored = sum(self._offsets.values())
            if (stored and not was) or was < stored == self._records:
                report(stored, self._bytes, is_last=stored == self._records)


class ReportingTask(MirrorTask):
    """A task of a mirror that counts its records."""

    progress: ClassVar[Progress]

    def poll(self) -> Sequence[SourcePosition]:
        positions = super().poll()
        self.progress.add(positions)
        return positions


class ReportingMirror(MirrorConnector):
    """A mirror with tasks that count their records."""

    task_class = ReportingTask


async def main(zookeeper: str, broker: str, config: Mapping[str, str]) -> None:
    settings = WorkerSettings(group=config["name"], zookeeper=zookeeper, brokers=broker, rest=RestSettings(port=0))
    whole = {**config, "connector.class": f"{__name__}:{ReportingMirror.__name__}", "source.bootstrap.servers": broker}
    async with Worker(settings) as worker:
        body = json.dumps({"name": config["name"], "config": whole})
        headers = {"Content-Type": "application/json"}
        await AsyncHTTPClient().fetch(f"{worker.url}/connectors", method="POST", headers=headers, body=body)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    # Tasks import this module by its name.
    from benchmarks.members import kiel_mirror

    kiel_mirror.ReportingTask.progress = kiel_mirror.Progress(*map(int, sys.argv[3:5]))
    asyncio.run(kiel_mirror.main(*sys.argv[1:3], json.loads(sys.argv[5])))
