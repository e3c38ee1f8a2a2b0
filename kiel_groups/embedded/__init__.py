"""
Run real ZooKeeper and Kafka servers as child processes on the loopback interface.

The command line, the demo and the tests use it; programs import its names from here.
It is for development and tests, not for a production cluster.
"""

from kiel_groups.embedded.clusters.embedded_cluster import Cluster
from kiel_groups.embedded.faults.fault_proxy import Direction, FaultProxy, Side
from kiel_groups.embedded.faults.kafka_proxy import Exchange, KafkaProxy, NextFailures, NextRefusals, Partial, failing
from kiel_groups.embedded.servers.ensemble import ZooKeeperEnsemble
from kiel_groups.embedded.servers.kafka_broker import KafkaBroker
from kiel_groups.embedded.servers.zookeeper_server import ZooKeeperServer

__all__ = [
    "Cluster",
    "KafkaBroker",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
    "FaultProxy",
    "Direction",
    "Side",
    "KafkaProxy",
    "NextFailures",
    "NextRefusals",
    "Exchange",
    "Partial",
    "failing",
]
