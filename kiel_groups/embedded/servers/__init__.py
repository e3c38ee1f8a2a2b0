"""
Run one kind of server a module: ZooKeeper, an ensemble of it, and a Kafka broker, with their configuration.

``embedded.clusters`` puts them together; tests start single ones.
Data lie in a folder of the run, and nothing is written elsewhere.
"""
