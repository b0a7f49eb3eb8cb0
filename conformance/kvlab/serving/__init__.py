"""Real servers of engines on a CPU: a tiny model, HTTP traffic, and answers compared with passes without a cache."""
