"""
Send each order of a topic to a web service, from a plain program without an event loop.

A request that fails for now is sent again, after pauses that grow. An order that the web service refuses, or that has
failed too often, goes to the topic of dead letters. SIGTERM and Ctrl-C end the worker: it finishes the order in flight,
commits, and leaves the group.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from http.client import HTTPException
from queue import SimpleQueue
from types import FrameType
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from kiel_groups import KielGroupsError, Record
from kiel_groups.errors import ClosedError
from kiel_groups.sync import GroupedConsumer, Producer

log = logging.getLogger("send_orders")

#: All tries and pauses of one record together must take less than ``max_poll_interval_ms`` of the consumer (5 minutes):
#: after that, the member loses its partitions, because it seems to hang.
REQUEST_TIMEOUT_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
#: How long the end may take, in seconds. Choose less than the supervisor waits before it kills the process.
SHUTDOWN_S = 8.0


class RefusedError(Exception):
    """The web service refuses the order, and would refuse it again."""


class FailedError(Exception):
    """The request failed. The same request may succeed later."""


class StoppedError(Exception):
    """The worker ends before a try. The record is not finished: the next owner of its partition gets it again."""


class Worker:
    """
    Sends the orders of one topic.

    Args:
        consumer: Commits finished records by itself.
        producer: Sends dead letters.
        url: Where orders are posted.
        tries: How often a request that fails is sent.
    """

    def __init__(self, consumer: GroupedConsumer, producer: Producer, url: str, tries: int) -> None:
        self.consumer = consumer
        self.producer = producer
        self.url = url
        self.tries = tries
        self.stopping = threading.Event()

    def run(self, topic: str) -> None:
        """Send orders until ``stop`` is called. Raise the error that ends the consumer."""
        try:
            with self.producer, self.consumer:
                self._run(topic, f"{topic}-dead")
        except StoppedError:
            log.info("the order in flight was not sent: the next member gets it")
        except ClosedError:
            # ``stop`` was called before the consumer had joined. Any other error is the caller's.
            if not self.stopping.is_set():
                raise

    def _run(self, topic: str, dead_letters: str) -> None:
        if dead_letters not in self.consumer.topics():
            sys.exit(f"error: there is no topic {dead_letters}; create it for the orders that cannot be sent")
        self.consumer.subscribe(topic)
        for record in self.consumer:
            # A record is finished, and may be committed, when the loop asks for the next one, or at a ``break``. An
            # exception leaves it to the next member.
            if self.stopping.is_set():
                raise StoppedError
            try:
                self.send(record)
            except (RefusedError, FailedError) as error:
                log.error("%s, offset %d: dead letter: %s", record.topic_partition, record.offset, error)
                # Waits until the dead letter is stored. If it cannot be stored, the record stays unfinished.
                self.producer.produce(dead_letters, record.value, key=record.key).result()

    def stop(self, why: str) -> None:
        """End the loop after the record in flight, commit, and leave the group. Another thread calls this method."""
        self.stopping.set()
        log.info("%s: finishing the order in flight", why)
        self.consumer.close(timeout_s=SHUTDOWN_S)

    def send(self, record: Record) -> None:
        """Send an order, again and again if necessary."""
        pause_s = FIRST_PAUSE_S
        for left in reversed(range(self.tries)):
            try:
                return self.post(record)
            except FailedError as error:
                if not left:
                    raise
                log.warning(
                    "%s, offset %d: %s; next try in %g s", record.topic_partition, record.offset, error, pause_s
                )
            if self.stopping.wait(pause_s):
                raise StoppedError
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise AssertionError("at least one try")

    def post(self, record: Record) -> None:
        """
        Do the work on one record, once: replace this method.

        After a crash, a record is sent again. The web service recognises it by the key of the request.
        """
        headers = {"Idempotency-Key": f"{record.topic_partition}:{record.offset}", "Content-Type": "application/json"}
        request = Request(self.url, data=record.value or b"", headers=headers, method="POST")
        try:
            with urlopen(request, timeout=REQUEST_TIMEOUT_S):
                return
        except HTTPError as error:
            kind = RefusedError if 400 <= error.code < 500 and error.code not in (408, 429) else FailedError
            raise kind(f"{self.url} answered {error.code} {error.reason}") from error
        except (OSError, HTTPException) as error:
            raise FailedError(f"{self.url}: {error}") from error


def stop_at_signals(worker: Worker) -> None:
    """Call ``worker.stop`` on another thread at the first SIGTERM or Ctrl-C. The second one ends the process."""
    # Python runs a signal handler between any two steps of the main thread, which may hold a lock at that moment. A
    # SimpleQueue permits that; an Event, for example, could wait for itself.
    signals: SimpleQueue[int] = SimpleQueue()

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        signals.put(number)

    def stop() -> None:
        worker.stop(signal.Signals(signals.get()).name)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    threading.Thread(target=stop, name="stop", daemon=True).start()


def web_address(text: str) -> str:
    """Return the address, or raise argparse's error."""
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} is no address; expected http://… or https://…")
    return text


def run() -> None:
    parser = argparse.ArgumentParser(description="Send each order of a topic to a web service.")
    environment = os.environ.get
    parser.add_argument("topic")
    parser.add_argument("url", type=web_address, help="where orders are posted")
    parser.add_argument("--brokers", default=environment("KIEL_GROUPS_BROKERS", "127.0.0.1:9092"))
    parser.add_argument("--zookeeper", default=environment("KIEL_GROUPS_ZOOKEEPER", "127.0.0.1:2181"))
    parser.add_argument("--group", default="send-orders")
    parser.add_argument("--tries", type=int, default=6, choices=range(1, 11), metavar="N", help="1 to 10")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        consumer = GroupedConsumer(options.brokers, options.group, options.zookeeper)
        worker = Worker(consumer, Producer(options.brokers), options.url, options.tries)
        stop_at_signals(worker)
        worker.run(options.topic)
    except KielGroupsError as error:
        sys.exit(f"error: {error}")
    log.info("left the group")


if __name__ == "__main__":
    run()
