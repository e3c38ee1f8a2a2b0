"""
A Tornado web service that consumes in the background: it counts the views of each page, and answers with the counts.

``/healthz`` answers while the process works, ``/readyz`` while this consumer is a live member of its group. SIGTERM and
Ctrl-C end the service: it finishes the record in flight, commits, leaves the group, and stops answering.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections import Counter
from contextlib import suppress

from kiel_groups import GroupedConsumer, KielGroupsError, Record
from kiel_groups.errors import ClosedError
from kiel_groups.rest.metrics_text import metrics_answer, registry_families
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

log = logging.getLogger("web_service")

#: How long the end may take, in seconds. Choose less than the supervisor waits before it kills the process: systemd
#: waits for 90 s, Docker for 10 s, Kubernetes for 30 s.
SHUTDOWN_S = 8.0


class Service:
    """Counts page views from a topic, and knows whether the process is ready."""

    def __init__(self, consumer: GroupedConsumer, work_s: float) -> None:
        self.consumer = consumer
        self.work_s = work_s
        self.views: Counter[str] = Counter()
        self.stopping = False

    async def consume(self, topic: str) -> None:
        """Consume until the consumer is closed. Raise the error that prevents consuming for good."""
        await self.consumer.connect()
        await self.consumer.subscribe(topic)
        async for record in self.consumer:
            await self.process(record)

    async def process(self, record: Record) -> None:
        """Do the work on one record: replace this method. Once it has returned, the record may be committed."""
        await asyncio.sleep(self.work_s)
        self.views[(record.value or b"").decode(errors="replace")] += 1

    def why_not_ready(self) -> str | None:
        """Return why no request should be sent here at the moment, or None."""
        if self.stopping:
            return "shutting down"
        return None if self.consumer.is_member else "not a member of the group"


class Handler(RequestHandler):
    def initialize(self, service: Service) -> None:
        self.service = service


class Views(Handler):
    """The counts of this process since its start. Only its own partitions count: other members have the others."""

    def get(self) -> None:
        self.write(dict(self.service.views))


class Health(Handler):
    """Whether the process works. A supervisor that restarts it by this need not know ZooKeeper's state."""

    def get(self) -> None:
        self.write("ok\n")


class Readiness(Handler):
    """Whether a load balancer should send requests here."""

    def get(self) -> None:
        reason = self.service.why_not_ready()
        self.set_status(200 if reason is None else 503)
        self.write(f"{reason or 'ready'}\n")


class Metrics(Handler):
    """The consumer's metrics, in Prometheus' text format."""

    def get(self) -> None:
        answer = metrics_answer(registry_families(({}, self.service.consumer.metrics)))
        self.set_header("Content-Type", answer.content_type)
        self.write(answer.text)


def serve(service: Service, port: int) -> HTTPServer:
    """Start to answer requests on a port of 127.0.0.1; 0 lets the system choose one."""
    paths = {"/views": Views, "/healthz": Health, "/readyz": Readiness, "/metrics": Metrics}
    server = HTTPServer(Application([(path, handler, {"service": service}) for path, handler in paths.items()]))
    sockets = bind_sockets(port, "127.0.0.1")
    server.add_sockets(sockets)
    log.info("serving on http://127.0.0.1:%d", sockets[0].getsockname()[1])
    return server


async def main(options: argparse.Namespace) -> None:
    consumer = GroupedConsumer(options.brokers, options.group, options.zookeeper)
    service = Service(consumer, options.work)
    server = serve(service, options.port)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    consuming = asyncio.create_task(service.consume(options.topic))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({consuming, stopped}, return_when=asyncio.FIRST_COMPLETED)
        log.info("shutting down")
        service.stopping = True
        # Waits for the record in flight, commits it, and leaves the group. /readyz answers 503 meanwhile.
        await consumer.close(timeout_s=SHUTDOWN_S)
        # Has an effect only if the record in flight took longer than that.
        consuming.cancel()
        # ClosedError: the close came before the consumer had joined. Any other error has ended the consumer.
        with suppress(asyncio.CancelledError, ClosedError):
            await consuming
        log.info("left the group")
    finally:
        stopped.cancel()
        server.stop()
        await server.close_all_connections()


def run() -> None:
    parser = argparse.ArgumentParser(description="Count page views in the background, and serve the counts.")
    environment = os.environ.get
    parser.add_argument("topic")
    parser.add_argument("--brokers", default=environment("KIEL_GROUPS_BROKERS", "127.0.0.1:9092"))
    parser.add_argument("--zookeeper", default=environment("KIEL_GROUPS_ZOOKEEPER", "127.0.0.1:2181"))
    parser.add_argument("--group", default="page-counts")
    parser.add_argument("--port", type=int, default=8080, help="on 127.0.0.1")
    parser.add_argument("--work", type=float, default=0.0, help="how long a record takes, in seconds")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(main(options))
    except (KielGroupsError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    run()
