"""Tool calls and reasoning in the text of a response; nothing here has I/O."""
