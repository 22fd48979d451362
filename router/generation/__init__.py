"""One response: rounds of propose, verify, decide and emit."""
