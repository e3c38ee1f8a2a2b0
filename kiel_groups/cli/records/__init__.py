"""
Read lines as records and print records as lines, without blocking the event loop.

``consume`` and ``produce`` use it.
It never drops a line silently: lines that were not stored are reported by their numbers.
"""
