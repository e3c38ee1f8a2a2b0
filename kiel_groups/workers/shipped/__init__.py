"""
Provide the connectors that come with the package: files to topics, topics to files, and topics to a URL.

Workers find these connectors by entry points, as they find connectors of other packages. No module imports these
connectors by name. The connectors use only the interfaces of ``kiel_groups.workers.plugins``, without clients and
ZooKeeper. A connector with further needs has a package of its own, such as ``kiel_groups.mirror``.
"""
