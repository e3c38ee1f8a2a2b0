"""
Print messages as a member of a group, and commit without waiting, in the style of kiel's programs. ::

    python examples/kiel_style/worker.py 127.0.0.1:9092 127.0.0.1:2181 colours
"""

import argparse
import json

from kiel_groups.clients import GroupedConsumer
from tornado import gen, ioloop


def process_message(message):
    print(json.dumps(message), flush=True)


@gen.coroutine
def run(consumer, topic):
    yield consumer.connect()

    while True:
        messages = yield consumer.consume(topic)

        for message in messages:
            process_message(message)

        if messages:
            consumer.commit_offsets()


def main():
    parser = argparse.ArgumentParser(description="Print the messages of a topic, shared with other workers.")
    parser.add_argument("brokers", type=lambda text: text.split(","))
    parser.add_argument("zk_hosts", type=lambda text: text.split(","))
    parser.add_argument("topic")
    parser.add_argument("--group", default="worker-group")
    args = parser.parse_args()

    consumer = GroupedConsumer(brokers=args.brokers, group=args.group, zk_hosts=args.zk_hosts, autocommit=False)
    loop = ioloop.IOLoop.instance()
    loop.add_callback(run, consumer, args.topic)

    try:
        loop.start()
    except KeyboardInterrupt:
        consumer.close().add_done_callback(lambda _: loop.stop())


if __name__ == "__main__":
    main()
