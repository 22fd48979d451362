"""What every scenario uses: load, statistics, report, charts, processes and the command line."""
