"""Upgrades of a release of the chart, by helm and kubectl."""
