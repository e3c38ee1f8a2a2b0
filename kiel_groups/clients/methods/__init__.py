"""
The methods of consumers by concern, from which the classes that applications use are put together.

Both consumers inherit their records, assigned partitions and questions about topics from here; ``GroupedConsumer`` also
its life cycle, subscription and commits, ``SingleConsumer`` its topics. This package decides nothing about offsets and
delivers nothing itself.
"""
