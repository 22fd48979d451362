"""From logits to tokens: entropies, log-probabilities, filters, and the draw itself."""
