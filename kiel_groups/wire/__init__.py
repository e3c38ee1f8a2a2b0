"""
The protocol of Kafka 0.8, without I/O: bytes in, values out, and back.

A request knows how to write itself and how to read its response (:mod:`kiel_groups.wire.framing`). Whatever a broker
sends, a decoder returns a value or raises :class:`~kiel_groups.errors.ProtocolError`.
"""
