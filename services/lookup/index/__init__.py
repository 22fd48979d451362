"""Look-up of earlier text: n-gram indexes, proposals from them, a cache of finished responses, snippets."""
