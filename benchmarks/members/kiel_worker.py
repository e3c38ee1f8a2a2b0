"""
Run a worker of kiel-groups.

It joins at a line of input, and leaves at its end. Arguments: ZooKeeper's servers, group, settings of the worker as
JSON. The lines of output are those of ``event_lines``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from benchmarks.members.event_lines import report
from kiel_groups.errors import KielGroupsError
from kiel_groups.rest.settings import RestSettings
from kiel_groups.workers.execution.worker import Worker
from kiel_groups.workers.execution.worker_settings import WorkerSettings

#: Tasks that deliver nothing do not connect to it.
NO_BROKER = "127.0.0.1:1"


async def main(zookeeper: str, group: str, settings: dict[str, Any]) -> None:
    worker = Worker(
        WorkerSettings(group=group, zookeeper=zookeeper, brokers=NO_BROKER, rest=RestSettings(port=0), **settings)
    )
    report(0, "prepared")
    await asyncio.to_thread(sys.stdin.readline)
    report(0, "joining")
    try:
        async with worker:
            await asyncio.to_thread(sys.stdin.read)
            report(0, "leaving")
    except KielGroupsError as error:
        report(0, "failed", [type(error).__name__, *str(error).split()])
        # The thread that reads standard input would keep the process from ending.
        os._exit(1)
    report(0, "left")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3], json.loads(sys.argv[3])))
