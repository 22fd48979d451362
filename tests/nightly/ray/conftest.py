"""Fixtures of tests on Ray."""

from tests.support.local_ray import deployment, small
from tests.support.ray_leftovers import _leaves_nothing

__all__ = ["_leaves_nothing", "deployment", "small"]
