"""What operators look at and work with: groups of a cluster, put together from ZooKeeper and the brokers."""
