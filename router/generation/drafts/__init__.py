"""The drafts of one response: their sources, asked in order."""
