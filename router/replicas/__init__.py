"""The target and drafter replicas that this router uses."""
