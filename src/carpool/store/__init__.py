"""People, keys and usage, in SQLite or PostgreSQL. Synchronous: call it from threads."""
