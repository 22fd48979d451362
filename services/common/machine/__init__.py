"""The machine that a process runs on: its cores, memory and GPUs, as far as the process may use them."""
