"""
Send messages with a counter and a colour, a number of them or until Ctrl-C, in the style of kiel's programs. ::

    python examples/kiel_style/maker.py 127.0.0.1:9092 colours --batch_size 100 --compression gzip
"""

import argparse
import random

from kiel_groups.clients import Producer
from tornado import gen, ioloop

COLORS = ["amber", "blue", "green", "red"]

counter = 0


def key_maker(message):
    return message["counter"]


def partitioner(key, partitions):
    return partitions[key % len(partitions)]


@gen.coroutine
def run(producer, topic, count, pause):
    global counter

    yield producer.connect()

    while count is None or counter < count:
        yield producer.produce(topic, {"counter": counter, "color": random.choice(COLORS)})
        counter += 1
        if pause:
            yield gen.sleep(pause)

    yield producer.close()
    ioloop.IOLoop.current().stop()


def show():
    print(f"{counter} messages", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Send messages to a topic.")
    parser.add_argument("brokers", type=lambda text: text.split(","))
    parser.add_argument("topic")
    parser.add_argument("--batch_size", type=int, default=1)
    parser.add_argument("--compression", choices=["gzip", "snappy", "lz4"])
    parser.add_argument("--count", type=int, help="the number of messages; endless without it")
    parser.add_argument("--pause", type=float, default=0, help="seconds between two messages")
    parser.add_argument("--interval", type=float, default=5, help="seconds between two lines")
    args = parser.parse_args()

    producer = Producer(
        brokers=args.brokers,
        key_maker=key_maker,
        partitioner=partitioner,
        batch_size=args.batch_size,
        compression=args.compression,
    )
    loop = ioloop.IOLoop.instance()
    loop.add_callback(run, producer, args.topic, args.count, args.pause)
    status = ioloop.PeriodicCallback(show, args.interval * 1000)

    def end(_):
        status.stop()
        loop.stop()

    try:
        status.start()
        loop.start()
    except KeyboardInterrupt:
        producer.close().add_done_callback(end)
    show()


if __name__ == "__main__":
    main()
