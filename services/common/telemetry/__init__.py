"""What a process tells of itself: metrics, traces, logs; never of what was said."""
