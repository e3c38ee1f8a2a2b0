"""Generated cases are judged by their outcome: a busy machine is no reason for a deadline to fail one."""

from hypothesis import settings

settings.register_profile("suite", deadline=None)
settings.load_profile("suite")
