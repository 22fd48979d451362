"""The control loop: compare desired and actual replicas, start, drain and replace them."""
