"""
Encode the requests and decode the answers of one API of the protocol a module, named with its version.

``clients.net`` and its callers send these; a connection matches answers to requests.
These modules do not interpret error codes: ``wire.error_codes`` describes them, and the caller decides what follows.
"""
