"""
Run whole pipelines made of the data source: a function of a session and settings, and a command beside it.

``kiel-groups spark`` and applications call them.
A job owns its folders and nothing else; what a stopped job has left, its next run continues.
"""
