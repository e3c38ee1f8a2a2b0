"""
Inject faults between clients and servers: proxies that cut, delay or stall connections, or change brokers' answers.

Tests and the chaos runs use it; it needs no privileges.
It parses the frames of Kafka's protocol, and changes only answers that the caller's function selects.
"""
