"""
Simulated groups that brokers coordinate: real members on simulated time, with a fake coordinator and a network.

``tests.sim`` plays their seeds with ``--groups brokers``. The package uses the application, the logs and the processes
of the groups on ZooKeeper, and has no ZooKeeper itself.
"""
