"""
The methods of consumers by concern, from which the classes that applications use are put together.

``GroupedConsumer`` inherits its life cycle, subscription, assigned partitions and records from here, and both consumers
their questions about topics. This package decides nothing about offsets and delivers nothing itself.
"""
