"""The profile of hypothesis for this suite. Its deadlines are off: a busy computer would exceed them."""

from hypothesis import settings

settings.register_profile("suite", deadline=None)
settings.load_profile("suite")
