"""The harness of all scenarios: load, statistics, report, charts, processes and the command line."""
