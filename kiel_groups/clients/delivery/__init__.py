"""
Deliver fetched records to the application, and track which of them it has finished.

``grouped`` runs it between the fetcher and the application; ``single`` uses its deserializer alone.
It delivers no record while the gate is shut, and finishes none that the application may still be processing.
"""
