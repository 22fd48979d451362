"""Copies of models: from the model hub or a folder, wherever it is, into a folder of this machine."""
