"""For all tests: a busy machine may take its time over an example; Ray has its token from the start."""

import os

from hypothesis import settings

from orchestration.local_ray import prepare_environment

# NOTE: continuous integration judges a change, so it tries the same examples each time; people try new ones.
settings.register_profile("flyserve", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("flyserve")

# NOTE: Ray reads it once per process, with its first import, whichever test that comes with.
prepare_environment()
