"""What FLy costs in quality and gains in tokens per round, setting by setting, on thousands of problems."""
