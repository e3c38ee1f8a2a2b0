"""
View a group that brokers coordinate, check it, and render it as tables or JSON.

``service`` builds the views; the command line prints them.
This package is pure, as ``ops`` is, whose partitions, findings and tables it uses.
"""
