"""Grammars over tokens, as routers and engines use them: the library's limits, and one sequence's state."""
