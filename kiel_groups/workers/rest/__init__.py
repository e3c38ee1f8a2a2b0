"""
Serve the REST interface of a worker, which is Kafka Connect's, and call the one of another worker.

The runtime of workers starts the server; the command line and other workers call it by the client in this package.
This package decides and stores nothing: it asks the worker's ``WorkerControl``, and knows neither ZooKeeper nor Kafka.
"""
