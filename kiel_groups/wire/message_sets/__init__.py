"""
Decode and encode message sets of magic 0: records for consumers, columns for Arrow, bytes for producers.

The fetcher and the Spark tasks call ``decoder`` and ``columns``, the producer's sender calls ``encoder``.
Every message is checked here: a damaged message is never skipped, and it is an error if no record precedes it.
"""
