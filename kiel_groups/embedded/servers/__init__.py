"""
Run single servers: a ZooKeeper server, an ensemble of them, and a Kafka broker, with their configuration.

``embedded.clusters`` combines them into clusters; tests and programs start single ones.
It writes no file outside the folder of the run.
"""
