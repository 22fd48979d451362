"""The comparison behind `flyserve bench`: its tasks, its settings, its statistics and its table."""
