"""
Encode requests and decode answers of the Kafka protocol, as 0.8 speaks it: bytes in, values out, and back.

The clients and the Spark source use it; so do the fake and the faulty brokers of tests.
It is pure: it opens no connection, and it knows nothing of groups.
"""
