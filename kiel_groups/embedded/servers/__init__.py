"""
Run single servers: a ZooKeeper server, an ensemble of them, and a Kafka broker, with their configuration.

``embedded.clusters`` combines these servers into clusters. Tests start single servers.
By default, all files are in a folder of the run, and nothing is written elsewhere.
"""
