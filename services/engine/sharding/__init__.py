"""One model shared by several processes: the leader tells each forward's plan, every rank runs it."""
