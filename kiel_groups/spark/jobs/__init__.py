"""
Jobs: whole pipelines made of the data source. Each is a function of a session and settings, and a command beside it.

``archive`` copies topics into Parquet. Others take their place here as modules of their own; what they share are
``folders`` (files wherever Spark keeps them), ``running`` (a query and who waits for it) and ``sessions``.
"""
