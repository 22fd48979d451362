"""Starts, watches and stops the services of one deployment, and tells routers where they are."""
