"""Triton kernels of the builtin engine on a GPU, and its parts with them; no service loads this package.

They have never run on a GPU. `python -m benchmarks gpu` compares them with torch there.
"""
