"""
Parse and check the options of a query, which users pass with ``.option(…)``, and its schema.

Readers and writers call it once, on the driver, before anything is read.
It sends no requests: options that only the cluster can disprove are checked where offsets are looked up.
"""
