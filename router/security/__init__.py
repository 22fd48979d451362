"""Who calls: API keys, what each may do, and what tells their work apart."""
