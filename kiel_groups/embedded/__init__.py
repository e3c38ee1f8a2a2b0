"""
Run real ZooKeeper and Kafka servers as child processes on the loopback interface.

The command line, the demo and the tests use it; programs import its names from here.
It is for development and tests, not for a production cluster.
"""

from kiel_groups.embedded.cluster import Cluster
from kiel_groups.embedded.kafka import KafkaBroker
from kiel_groups.embedded.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

__all__ = ["Cluster", "KafkaBroker", "ZooKeeperEnsemble", "ZooKeeperServer"]
