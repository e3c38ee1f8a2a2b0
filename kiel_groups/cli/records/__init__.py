"""
Move records between a command and its streams: lines in, lines out, without blocking the event loop.

``consume`` and ``produce`` use it.
It never drops a line silently: lines that were not stored are reported by their numbers.
"""
