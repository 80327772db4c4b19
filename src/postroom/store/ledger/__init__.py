"""The SQL of the idempotency ledger."""
