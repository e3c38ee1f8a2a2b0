"""The example of a blocking worker: it repeats failing requests, keeps dead letters, and ends in order."""

from __future__ import annotations

import runpy
import signal
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from unittest.mock import MagicMock

import pytest

from kiel_groups import Producer, SingleConsumer
from kiel_groups.embedded import Cluster
from tests.helpers.cluster_data import await_committed, committed, members
from tests.helpers.commands import REPOSITORY, Running
from tests.helpers.waiting import eventually

pytestmark = pytest.mark.integration

PROGRAM = str(REPOSITORY / "examples" / "blocking_worker" / "send_orders.py")

Unique = Callable[[str], str]


class Shop(ThreadingHTTPServer):
    """A web service that answers an order as the order says: with a status for each try, the last one for ever."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Order)
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        #: The orders as they came, each with its idempotency key.
        self.orders: list[tuple[bytes, str]] = []
        #: An order "wait" is answered once this is set.
        self.go_on = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/orders"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.go_on.set()
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Order(BaseHTTPRequestHandler):
    server: Shop

    def do_POST(self) -> None:
        order = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.orders.append((order, self.headers["Idempotency-Key"]))
        if order == b"wait":
            self.server.go_on.wait(30)
            statuses = [200]
        else:
            statuses = [int(status) for status in order.split()]
        tried = sum(known == order for known, _ in self.server.orders)
        self.send_response(statuses[min(tried, len(statuses)) - 1])
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name in the base class
        """Log nothing."""


def started(cluster: Cluster, topic: str, url: str, group: str) -> Running:
    options = ["--brokers", cluster.brokers[0], "--zookeeper", cluster.zk_hosts, "--group", group, "--tries", "3"]
    return Running([PROGRAM, topic, url, *options])


async def send(cluster: Cluster, topic: str, *orders: bytes) -> None:
    async with Producer(cluster.brokers) as producer:
        for order in orders:
            await producer.produce(topic, order, key=b"key of " + order)


async def test_orders_are_sent_repeated_and_buried(cluster_39: Cluster, unique: Unique) -> None:
    """
    A request that fails is sent three times at most; one that is refused, once. Both kinds become dead letters. At
    SIGTERM the order in flight is finished and committed, and no other one begins.
    """
    topic, group = unique("orders"), unique("group")
    for name in (topic, f"{topic}-dead"):
        await cluster_39.create_topic(name, 1)
    await send(cluster_39, topic, b"200", b"503 429 201", b"400", b"500", b"202")
    with Shop() as shop, started(cluster_39, topic, shop.url, group) as worker:
        await await_committed(cluster_39, group, topic, 5)
        tries = [int(key.rpartition(":")[2]) for _, key in shop.orders]
        assert tries == [0, 1, 1, 1, 2, 3, 3, 3, 4]
        assert {key.rpartition(":")[0] for _, key in shop.orders} == {f"{topic}:0"}
        await send(cluster_39, topic, b"wait", b"200 200")
        await eventually(lambda: shop.orders[-1][0] == b"wait", "the order is in flight")
        worker.process.send_signal(signal.SIGTERM)
        worker.wait_for_error("INFO send_orders: SIGTERM: ")
        shop.go_on.set()
        assert worker.wait() == 0
        assert worker.errors[-1] == "INFO send_orders: left the group"
        assert shop.orders[-1][0] == b"wait"
        assert committed(cluster_39, group, topic) == 6
        assert members(cluster_39, group) == []
    async with SingleConsumer(cluster_39.brokers) as consumer:
        await consumer.subscribe(f"{topic}-dead", start=SingleConsumer.BEGINNING)
        letters = [await anext(consumer) for _ in range(2)]
    assert [(letter.key, letter.value) for letter in letters] == [
        (b"key of " + order, order) for order in (b"400", b"500")
    ]


async def test_an_order_that_fails_at_the_end_is_left_to_the_next_member(cluster_39: Cluster, unique: Unique) -> None:
    """Ctrl-C between two tries ends the worker at once. The order is not committed, and is no dead letter."""
    topic, group = unique("orders"), unique("group")
    for name in (topic, f"{topic}-dead"):
        await cluster_39.create_topic(name, 1)
    await send(cluster_39, topic, b"200", b"503")
    with Shop() as shop, started(cluster_39, topic, shop.url, group) as worker:
        worker.wait_for_error(f"WARNING send_orders: {topic}:0, offset 1: ")
        assert worker.end(signal.SIGINT) == 0
        assert "INFO send_orders: the order in flight was not sent: the next member gets it" in worker.errors
    assert committed(cluster_39, group, topic) == 1


def test_an_order_that_comes_after_the_stop_is_left_to_the_next_member() -> None:
    """The consumer may deliver one more record between the stop and its own end. Its error leaves the loop."""
    example = runpy.run_path(PROGRAM)
    consumer = MagicMock()
    consumer.topics.return_value = {"orders-dead"}
    consumer.__iter__.return_value = [MagicMock()]
    worker = example["Worker"](consumer, MagicMock(), "http://127.0.0.1:1/", 1)
    worker.stop("SIGTERM")
    worker.run("orders")
    assert consumer.__exit__.call_args.args[0] is example["StoppedError"]


async def test_a_topic_without_one_for_dead_letters_is_refused(cluster_39: Cluster, unique: Unique) -> None:
    """The error names the missing topic."""
    topic = unique("orders")
    await cluster_39.create_topic(topic, 1)
    with started(cluster_39, topic, "http://127.0.0.1:1/", unique("group")) as worker:
        assert worker.wait() == 1
        assert worker.errors[-1] == (
            f"error: there is no topic {topic}-dead; create it for the orders that cannot be sent"
        )
