"""What fits, how many people it serves, and what it costs: worked out before anything starts."""
