"""
Decode message sets of magic 0 into records or Arrow columns, and encode the message sets of producers.

The fetcher and the Spark tasks call ``decoder`` and ``columns``. The producer's sender calls ``encoder``. The decoder
checks every message, and does not skip a damaged message. The decoder returns the records before the damaged message,
or raises an error if no record precedes the damaged message.
"""
