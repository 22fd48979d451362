"""Telemetry of a process: metrics, traces and logs; none of them contains a prompt, a token or a text."""
