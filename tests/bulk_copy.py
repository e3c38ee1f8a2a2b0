"""
Play the bulk copy of docs/leaving-0.8.rst on two real clusters: Spark copies, and a mirror continues.

    python -m tests.bulk_copy [--records N]

The command needs PySpark 4.0, whose Kafka sink Maven fetches. It is no test of the test run: the release of PySpark
there has no Kafka sink yet.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import pyspark
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.spark_read import SPARKS_OWN
from kiel_groups import TopicPartition
from kiel_groups.embedded import Cluster
from kiel_groups.embedded.jars import jar_folder
from kiel_groups.ops.actions.topics import ZooKeeperTopics
from kiel_groups.sync import Producer, SingleConsumer
from tests.helpers.commands import kiel_groups
from tests.helpers.pages import page, programs
from tests.helpers.spark.sessions import worker_environment

TOPIC, PARTITIONS = "orders", 3


def fill(source: Cluster, first: int, last: int) -> None:
    """Write numbered records to each partition; every third value, and every fifth key, is null."""
    with Producer(source.brokers) as producer:
        for partition in range(PARTITIONS):
            keys = [None if number % 5 == 0 else b"%d" % number for number in range(first, last)]
            values = [None if number % 3 == 0 else b"value-%d" % number for number in range(first, last)]
            producer.produce_many(TOPIC, values, keys, partition).result(120)


def bulk_copy(source: Cluster, target: Cluster) -> str:
    """Run the program of the page, and return the offsets that it prints."""
    jars = ",".join(map(str, sorted(jar_folder(SPARKS_OWN).glob("*.jar"))))
    submit = f"--jars {jars} --conf spark.ui.enabled=false --conf spark.log.level=ERROR pyspark-shell"
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "bulk_copy.py"
        program.write_text(programs(page("docs/leaving-0.8.rst"))[program.name])
        words = [sys.executable, str(program), source.brokers[0], target.brokers[0], TOPIC]
        variables = os.environ | worker_environment() | {"PYSPARK_SUBMIT_ARGS": submit}
        done = subprocess.run(words, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip().splitlines()[-1]


def contents(cluster: Cluster) -> dict[TopicPartition, list[tuple[Any, Any]]]:
    """Return the keys and values of each partition, in the order of their offsets."""
    found: dict[TopicPartition, list[tuple[Any, Any]]] = {}
    with SingleConsumer(cluster.brokers) as consumer:
        consumer.subscribe(TOPIC, SingleConsumer.BEGINNING)
        while batches := consumer.getmany(timeout_ms=3_000):
            for partition, records in batches.items():
                found.setdefault(partition, []).extend((record.key, record.value) for record in records)
    return found


def run(*words: str) -> None:
    """Run a command, and print what it prints."""
    done = kiel_groups(*words, timeout_s=600)
    click.echo(f"$ kiel-groups {' '.join(words)}\n{done.stdout}{done.stderr}")
    if done.returncode != 0:
        sys.exit(done.returncode)


@click.command(help=__doc__)
@click.option("--records", default=20_000, show_default=True, help="How many records of each partition Spark copies.")
def main(records: int) -> None:
    if not pyspark.__version__.startswith("4.0."):
        raise click.ClickException(f"PySpark 4.0 is needed for its Kafka sink; {pyspark.__version__} is installed")
    with Cluster(kafka="0.8.2.2") as source, Cluster(zookeeper=None, kafka="3.9.1") as target:
        ZooKeeperTopics(source.zk_hosts).create(TOPIC, PARTITIONS, 1, {})
        admin = AdminClient({"bootstrap.servers": ",".join(target.brokers)})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        fill(source, 0, records)
        starts = bulk_copy(source, target)
        click.echo(f"the bulk is copied up to {starts}")
        fill(source, records, records + 1_000)
        clusters = ("--from", source.zk_hosts, "--to", ",".join(target.brokers))
        begin = ("--exactly-once", "--set", f"start.offsets={starts}", "--until-caught-up")
        run("mirror", "start", *clusters, "--topics", TOPIC, *begin)
        run("mirror", "verify", *clusters)
        original, copy = contents(source), contents(target)
        if copy != original or sum(map(len, copy.values())) != PARTITIONS * (records + 1_000):
            raise click.ClickException("the copy differs from its original")
        click.echo(f"the copy has the {records + 1_000:,} records of each partition, once and in their order")


if __name__ == "__main__":
    main()
