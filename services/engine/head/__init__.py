"""From logits to tokens: entropies, log-probabilities, logits processors, filters and sampling."""
