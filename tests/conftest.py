"""For all tests: a busy machine may take its time over an example; Ray has its token from the start."""

from hypothesis import settings

from orchestration.local_ray import prepare_environment

settings.register_profile("flyserve", deadline=None)
settings.load_profile("flyserve")

# NOTE: Ray reads it once per process, with its first import, whichever test that comes with.
prepare_environment()
