"""SQL, once: schema, statements, what differs by dialect, the caller's connections."""
