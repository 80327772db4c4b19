"""The SQL of messages and their deliveries: add, claim, settle."""
