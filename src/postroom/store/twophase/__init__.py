"""Two-phase commit in SQL: the log of decisions, and the branches of databases."""
