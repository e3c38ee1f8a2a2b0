"""
Deliver fetched records to the application, and track which records the application has finished.

``connected_consumer`` uses this package for consumers with and without a group. The package delivers no record while
the member's session does not permit delivery (its *gate* is shut). The package finishes no record that the application
may still be processing.
"""
