"""Real servers of engines on a CPU: a tiny model, HTTP traffic, and every answer beside a pass without a cache."""
