"""The hypothesis profile of these tests. It has no deadlines, because a busy computer would exceed them."""

from hypothesis import settings

settings.register_profile("suite", deadline=None)
settings.load_profile("suite")
