"""
Define the interfaces of connectors and tasks, describe and check their settings, and find their classes by name.

Authors of connectors implement the interfaces, and workers call them. The REST interface reports the checks.
This package imports no clients and no ZooKeeper session, and starts no threads.
"""
