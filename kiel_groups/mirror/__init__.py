"""
Mirror topics of any release from 0.8 on to another cluster, whose release is 0.11 or later.

Workers find the connector ``Mirror`` by its entry point. The target is written with confluent-kafka, which the extra
``mirror`` installs. Decision 49 describes the guarantees.
"""
