"""
Compress and decompress message sets: gzip, snappy, and lz4 in the framing of Kafka 0.8.

``wire.message_sets`` compresses and decompresses with it; the clients and ``constants`` look codecs up by name.
Decompression never returns more bytes than the limit of its caller.
"""
