"""
Parse and check the options of a query, which users pass with ``.option(…)``, and its schema.

The source, its readers, writers, tasks and offset look-ups use it, and so do the jobs and ``kiel-groups spark``.
It sends no requests: checks that need the cluster are made where offsets are looked up.
"""
