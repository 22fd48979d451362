"""How the pair is trained: recipes, data, optimisers, the loop, checkpoints and export."""
