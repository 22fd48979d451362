"""Everything that calls Ray: the controller's actor and client, the fleet, connections, jobs."""
