"""One model sharded over several processes: the leader broadcasts a plan per forward; all ranks run it."""
