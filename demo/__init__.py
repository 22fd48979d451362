"""The demo pair: the text it learns from, its training, its evaluation, its weights and its tasks."""
