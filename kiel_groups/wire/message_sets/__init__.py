"""
Decode message sets of magic 0 into records or Arrow columns, and encode the message sets of producers.

The fetcher and the Spark tasks call ``decoder`` and ``columns``; the producer's sender calls ``encoder``. The decoder
checks every message, and does not skip a damaged one. It returns the records before that message, or raises an error if
there are none.
"""
