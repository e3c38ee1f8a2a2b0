"""
Provide the connectors that come with the package: files to topics, topics to files, and topics to a URL.

Workers find them by their entry points, as they find connectors of other packages; no module imports them by name.
They use only the interfaces of ``kiel_groups.workers.plugins``: neither clients nor ZooKeeper. A connector that needs
more, such as one that mirrors topics of another cluster, becomes a package beside this one.
"""
