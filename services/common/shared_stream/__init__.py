"""One stream between two processes that carries many sequences.

Messages that are ready at the same time leave in one message of gRPC, whose cost is the wake-ups of its
threads. On both sides the code of a sequence has its own end, as of a stream of its own.
"""
