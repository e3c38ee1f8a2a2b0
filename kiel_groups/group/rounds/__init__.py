"""
Decide when a group of programs needs a round, when the round is complete, and what the leader publishes.

``coordination.rounds`` performs what the package decides. It knows members and their metadata as bytes, and does not
know what these mean. It knows neither sessions nor time.
"""
