"""The controller's logic, without Ray: compare desired and actual replicas; start, drain and replace them.

`deployment_manager.py` runs the loop: it observes, decides (`autoscaler.py`, `reconciler.py`,
`placement.py`), writes the state (`state_store.py`), then acts (`executor.py`).
"""
