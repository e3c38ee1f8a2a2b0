"""
Encode the requests and decode the answers of one API of the protocol a module, named with its version.

Fetching, producing, ``clients.net``, Spark, the fault proxies, ``constants`` and ``kiel-groups topics`` use it.
These modules do not interpret error codes: ``wire.error_codes`` describes them, and the caller decides what follows.
"""
