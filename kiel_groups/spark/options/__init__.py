"""
Parse and check the options of a query, which users pass with ``.option(…)``, and its schema.

Readers and writers call it once, on the driver, before anything is read.
It sends no requests: checks that need the cluster are made where offsets are looked up.
"""
