"""Look-up of earlier text: n-gram and suffix indexes, a cache of finished responses, snippets of them."""
