"""
Inject faults between clients and servers: proxies that cut, delay or stall connections, or change brokers' answers.

Tests and the chaos runs use these proxies, which need no privileges.
A proxy for brokers parses the frames of Kafka's protocol, and changes only answers that the caller's function selects.
"""
