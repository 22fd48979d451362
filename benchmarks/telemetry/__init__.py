"""What telemetry costs a router: its CPU time per emitted token, with and without."""
