"""Which pattern holds how many agents, and when plain optimistic concurrency breaks: the simulator and the planner."""
