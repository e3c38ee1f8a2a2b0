"""
Deliver fetched records to the application, and track which of them it has finished.

``connected_consumer`` runs it between the fetcher and the application, for both consumers. It delivers no record while
the gate is shut, and finishes no record that the application may still be processing.
"""
