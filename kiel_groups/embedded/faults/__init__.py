"""
Put a proxy between clients and servers that fails on demand: cuts, delays, stalls, and wrong answers of brokers.

Tests and the chaos runs use it; it needs no privileges.
It knows the frames of Kafka's protocol, and changes only what its caller's rule says.
"""
