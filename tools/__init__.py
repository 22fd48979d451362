"""Build tools: generated references, the chart's schema and its golden renderings."""
