"""
Serve the REST interface of a worker, which is Kafka Connect's.

A worker starts the server; ``client`` is its client for the command line and for other workers.
This package decides and stores nothing: it asks the worker's ``WorkerRequests``, and uses neither ZooKeeper nor Kafka.
"""
