"""Triton kernels for GPUs: the greedy head and paged attention; and the choice to use them."""
