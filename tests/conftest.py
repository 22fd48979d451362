"""For all tests: a busy machine may take its time over a generated example."""

from hypothesis import settings

settings.register_profile("flyserve", deadline=None)
settings.load_profile("flyserve")
