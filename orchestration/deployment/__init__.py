"""The deployment file, and the plan of replicas that follows from it. Pure."""
