"""
Share the URLs of a file among crawlers, each of which fetches its own URLs again and again.

All crawlers of a group read the same file. One of them, the leader, deals the hosts of the URLs among all crawlers, in
proportion to the capacities with which they have joined. If a crawler starts, stops or dies, the hosts are dealt anew;
so they are if the file changes. No consumer and no broker is involved. ::

    python examples/sharded_crawlers.py 127.0.0.1:2181 crawlers urls.txt --capacity 2

While a crawler hangs, another one may fetch its URLs, too: fetches are harmless twice. Work that is not needs a claim
(docs/generic-members.rst).
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from kiel_groups import GenericMember, GroupProtocol, JoinedGroup, KielGroupsError
from tornado.httpclient import AsyncHTTPClient


class Crawler:
    """The hooks of a member: what it offers, how the leader deals hosts, and the fetches of its own URLs."""

    protocol_type = "crawlers"

    def __init__(self, file: Path, capacity: int, interval_s: float) -> None:
        self._file = file
        self._capacity = capacity
        self._interval_s = interval_s
        self._client = AsyncHTTPClient()
        self._fetching: list[asyncio.Task[None]] = []

    def file_changed_s(self) -> float:
        """Return when the file was written."""
        return self._file.stat().st_mtime

    async def protocols(self) -> Sequence[GroupProtocol]:
        return [GroupProtocol("by-host", json.dumps({"capacity": self._capacity}).encode())]

    async def perform_assignment(self, joined: JoinedGroup) -> Mapping[str, bytes]:
        hosts: dict[str, list[str]] = {}
        for url in sorted(set(self._file.read_text().split())):
            hosts.setdefault(urlsplit(url).netloc, []).append(url)
        dealt: dict[str, list[str]] = {member: [] for member in sorted(joined.members)}
        capacities = {member: json.loads(data)["capacity"] for member, data in joined.members.items()}
        # The largest hosts first, each to the crawler that has the least to do.
        for urls in sorted(hosts.values(), key=len, reverse=True):
            least = min(dealt, key=lambda member: (len(dealt[member]) + len(urls)) / capacities[member])
            dealt[least] += urls
        return {member: json.dumps(urls).encode() for member, urls in dealt.items()}

    async def complete(self, gate: object, joined: JoinedGroup, assignment: bytes) -> None:
        urls = json.loads(assignment)
        print("assigned", len(urls), flush=True)
        self._fetching = [asyncio.create_task(self._fetch(url)) for url in urls]

    async def prepare(self, gate: object) -> None:
        fetching, self._fetching = self._fetching, []
        for task in fetching:
            task.cancel()
        if fetching:
            await asyncio.wait(fetching)

    def lost(self, gate: object) -> None:
        for task in self._fetching:
            task.cancel()
        self._fetching = []
        print("lost", flush=True)

    async def _fetch(self, url: str) -> None:
        while True:
            try:
                response = await self._client.fetch(url, raise_error=False)
                print("fetched", url, response.code, flush=True)
            except OSError as error:
                print("failed", url, error, flush=True)
            await asyncio.sleep(self._interval_s)


async def main(zookeeper: str, group: str, file: Path, capacity: int, interval_s: float) -> None:
    failed: asyncio.Future[KielGroupsError] = asyncio.get_running_loop().create_future()
    crawler = Crawler(file, capacity, interval_s)
    member = GenericMember(crawler, group, zookeeper, session_timeout_ms=4_000, on_failure=failed.set_result)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asyncio.current_task().cancel)  # type: ignore[union-attr]
    try:
        await member.start()
        changed_s = crawler.file_changed_s()
        while not failed.done():
            await asyncio.wait({failed}, timeout=0.2)
            before_s, changed_s = changed_s, crawler.file_changed_s()
            if member.leads and changed_s != before_s:
                member.request_rejoin()
    finally:
        await member.close(timeout_s=5.0)
    raise failed.result()


def run() -> None:
    parser = argparse.ArgumentParser(description="Fetch the URLs of a file, which all crawlers of a group share.")
    parser.add_argument("zookeeper")
    parser.add_argument("group")
    parser.add_argument("file", type=Path, help="a file with a URL a line")
    parser.add_argument("--capacity", type=int, default=1, help="how much this crawler can do, beside others")
    parser.add_argument("--interval", type=float, default=60.0, help="the seconds between two fetches of a URL")
    args = parser.parse_args()
    try:
        with suppress(asyncio.CancelledError):
            asyncio.run(main(args.zookeeper, args.group, args.file, args.capacity, args.interval))
        print("left the group", file=sys.stderr)
    except KielGroupsError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    run()
