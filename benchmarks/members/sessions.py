"""
Run sessions that send heartbeats as members do, until the end of standard input.

Arguments: ZooKeeper, a name, the number of sessions. When all sessions have started, and at each line of input, the
process prints a line of JSON: how many heartbeats were answered so far, and their total waiting time in seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys

from kiel_groups.config import ZooKeeperConfig
from kiel_groups.group.znodes.transactions import Create
from kiel_groups.metrics import Metrics
from kiel_groups.zookeeper.heartbeat import Heartbeat
from kiel_groups.zookeeper.runtime import Runtime
from kiel_groups.zookeeper.session import Session


async def start_session(config: ZooKeeperConfig, proof: str, metrics: Metrics) -> None:
    session = Session(config, metrics, lambda event: None, Runtime())
    await session.open()
    await session.transact([Create(proof, b"", ephemeral=True)])
    Heartbeat(session, proof, None, metrics, Runtime()).start()


async def main(zookeeper: str, name: str, sessions: int) -> None:
    metrics = Metrics()
    for number in range(sessions):
        await start_session(ZooKeeperConfig.parse(zookeeper), f"/{name}-{number}", metrics)
    line = "\n"
    while line:
        seen = metrics.latency("heartbeat")
        print(json.dumps([seen.count, seen.total_s]), flush=True)  # noqa: T201
        line = await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3], int(sys.argv[3])))
