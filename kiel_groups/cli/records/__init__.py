"""
Move records between a command and its streams: lines in, lines out, without blocking the event loop.

``consume`` and ``produce`` use it.
It never drops a line: one that was not stored is named with its number.
"""
