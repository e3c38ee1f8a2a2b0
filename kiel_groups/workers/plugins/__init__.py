"""
Define the interfaces of connectors and tasks, describe and check their settings, and find their classes by name.

Authors of connectors implement the interfaces; the runtime of workers calls them. The REST interface reports checks.
This package runs nothing: it imports neither clients nor ZooKeeper, and uses clocks and threads only by its contexts.
"""
