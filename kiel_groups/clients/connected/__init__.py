"""
Compose the parts of a connected consumer, from connect to close: with a group, or with partitions assigned by hand.

``methods`` and ``single`` create these objects, and call them on the consumer's event loop.
The package neither decodes nor tracks records; ``fetch`` and ``delivery`` do.
"""
