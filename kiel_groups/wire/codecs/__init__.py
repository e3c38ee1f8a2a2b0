"""
Compress and decompress message sets: gzip, snappy, and lz4 in the framing of Kafka 0.8.

``wire.message_sets`` finds a codec in ``compression``, by the number in a message's attributes.
Decompression never returns more bytes than the limit of its caller.
"""
