"""
Run a member with kazoo's SetPartitioner, used as its documentation says, until standard input ends.

Arguments: ZooKeeper, group, the number of partitions, session timeout in ms, settings of SetPartitioner as JSON.
"""

from __future__ import annotations

import json
import os
import select
import sys
from typing import Any

from kazoo.client import KazooClient


def main(zookeeper: str, group: str, partitions: int, session_timeout_ms: int, settings: dict[str, Any]) -> None:
    client = KazooClient(zookeeper, timeout=session_timeout_ms / 1000)
    client.start()
    partitioner = client.SetPartitioner(f"/{group}", tuple(range(partitions)), identifier=str(os.getpid()), **settings)
    changed = partitioner.state_change_event
    while not select.select([sys.stdin], [], [], 0)[0]:
        changed.wait(0.005)
        changed.clear()
        if partitioner.release:
            partitioner.release_set()
        elif partitioner.failed:
            raise SystemExit("SetPartitioner failed")
    partitioner.finish()
    client.stop()


if __name__ == "__main__":
    main(*sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4]), json.loads(sys.argv[5]))
