"""The metrics of every role, one file each."""
