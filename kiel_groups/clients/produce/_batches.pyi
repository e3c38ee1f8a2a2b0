"""Declare what ``_batches.c`` has: see ``batches.py``, which has the same in Python."""

from kiel_groups.clients.produce.batches import PythonAppender, PythonRecords, python_set_places, python_track

class Records(PythonRecords): ...
class Appender(PythonAppender): ...

set_places = python_set_places
track = python_track
