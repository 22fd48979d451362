"""A whole deployment on one machine: a local Ray cluster, a router process, and their discovery."""
