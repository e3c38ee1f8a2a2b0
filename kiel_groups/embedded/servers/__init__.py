"""
Run single servers: a ZooKeeper server, an ensemble of them, and a Kafka broker, with their configuration.

``embedded.clusters`` combines them into clusters; tests start single ones.
All files are in a folder of the run; nothing is written elsewhere.
"""
