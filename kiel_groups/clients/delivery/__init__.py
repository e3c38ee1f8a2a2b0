"""
Deliver fetched records to the application, and know which of them it has finished.

The grouped consumer runs it between its fetcher and its member; the listener's hooks are called here.
It asks the member's gate before each record, and finishes nothing that the application may still be processing.
"""
