"""
Describe one API of the protocol a module: its request, its answer, and their bytes, named with the version.

``clients.net`` and its callers send these; a connection matches answers to requests.
It interprets nothing: what an error code means for a caller is in ``wire.error_codes``, what follows is the caller's.
"""
