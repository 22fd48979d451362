"""The parts that call Ray: the controller actor, instances, connections and jobs."""
