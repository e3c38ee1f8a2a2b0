"""
Serve the REST interface of a worker, which is Kafka Connect's.

The runtime of workers starts the server; ``rest_client`` is its client for the command line and for other workers.
This package decides and stores nothing: it asks the worker's ``WorkerControl``, and knows neither ZooKeeper nor Kafka.
"""
