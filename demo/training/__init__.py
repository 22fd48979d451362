"""Training of the pair: recipes, data, optimisers, the loop, checkpoints and export."""
