"""
Serve Kafka Connect's REST interface for a worker, and call the REST interfaces of workers.

A worker starts the server. The module ``client`` sends requests, for the command line and for other workers.
This package stores nothing: the worker's ``WorkerRequests`` carries out the requests, with ZooKeeper and Kafka.
"""
