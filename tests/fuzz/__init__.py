"""Fuzz the decoders and the encoder, guided by the coverage of each input: ``python -m tests.fuzz --help``."""
