"""Settings of all unit tests."""

from hypothesis import settings

# How long an example takes depends on what else the machine does: it is no reason to fail.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
