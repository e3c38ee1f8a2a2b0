"""
Deliver fetched records to the application, and track which records the application has finished.

This package lies between the fetcher and the member of a grouped consumer. It also calls the listener's hooks.
It checks the member's gate before each record, and finishes no record that the application may still be processing.
"""
