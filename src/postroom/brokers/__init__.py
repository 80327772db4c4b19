"""Brokers: the publish port (`port`), and a small publisher for each kind of broker."""
