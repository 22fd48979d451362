"""A model folder becomes a model, or an error that says what is wrong with it."""
