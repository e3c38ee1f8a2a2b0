"""
Compress and decompress message sets: gzip, snappy, and lz4 in the framing of Kafka 0.8.

``wire.message_sets`` calls it through ``compression``, by the number in a message's attributes.
Decompression never returns more than the bound that its caller gives.
"""
