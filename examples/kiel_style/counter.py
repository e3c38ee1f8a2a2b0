"""
Count the colours of the messages of ``maker.py``, and print the counts regularly, in the style of kiel's programs. ::

    python examples/kiel_style/counter.py 127.0.0.1:9092 colours
"""

import argparse
import collections

from kiel_groups.clients import SingleConsumer
from tornado import gen, ioloop

counts = collections.Counter()


@gen.coroutine
def run(consumer, topic):
    yield consumer.connect()

    while True:
        messages = yield consumer.consume(topic, consumer.BEGINNING)
        counts.update(message["color"] for message in messages)


def show():
    print(", ".join(f"{color}: {count}" for color, count in counts.most_common()), flush=True)


def main():
    parser = argparse.ArgumentParser(description="Count the colours of all messages of a topic.")
    parser.add_argument("brokers", type=lambda text: text.split(","))
    parser.add_argument("topic")
    parser.add_argument("--interval", type=float, default=5, help="seconds between two lines")
    args = parser.parse_args()

    consumer = SingleConsumer(brokers=args.brokers)
    loop = ioloop.IOLoop.instance()
    loop.add_callback(run, consumer, args.topic)
    status = ioloop.PeriodicCallback(show, args.interval * 1000)

    def end(_):
        status.stop()
        loop.stop()

    try:
        status.start()
        loop.start()
    except KeyboardInterrupt:
        consumer.close().add_done_callback(end)


if __name__ == "__main__":
    main()
