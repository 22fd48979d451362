"""Fixtures of tests with the demo pair."""

from tests.support.pair_fixtures import browser, deployment, page, problems, target, url

__all__ = ["browser", "deployment", "page", "problems", "target", "url"]
