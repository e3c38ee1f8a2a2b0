"""Real ZooKeeper and real Kafka 0.8 as child processes on the loopback interface, for the demo and the tests."""

from kiel_groups.embedded.cluster import Cluster
from kiel_groups.embedded.ensemble import ZooKeeperEnsemble
from kiel_groups.embedded.kafka import KafkaBroker
from kiel_groups.embedded.kafka_proxy import Exchange, KafkaProxy, Partial, failing
from kiel_groups.embedded.proxy import Direction, FaultProxy, Side
from kiel_groups.embedded.zookeeper import ZooKeeperServer

__all__ = [
    "Cluster",
    "KafkaBroker",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
    "FaultProxy",
    "Direction",
    "Side",
    "KafkaProxy",
    "Exchange",
    "Partial",
    "failing",
]
