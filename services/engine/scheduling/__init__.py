"""Continuous batching: jobs, the scheduler that fills forwards, and the delay of a forward."""
