"""
Parse and check what users pass with ``.option(…)``, and the schema that follows from it.

Readers and writers call it once, on the driver, before anything is read.
It asks no broker: an option that only the cluster can refute is refused where the cluster is asked.
"""
