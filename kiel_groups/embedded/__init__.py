"""
Run real ZooKeeper and Kafka servers as child processes on the loopback interface.

The command line, the demo and the tests use this package. Programs import its names from here. The servers are for
development and tests, not for production.
"""

from kiel_groups.embedded.cluster import Cluster
from kiel_groups.embedded.kafka import KafkaBroker
from kiel_groups.embedded.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

__all__ = ["Cluster", "KafkaBroker", "ZooKeeperEnsemble", "ZooKeeperServer"]
