"""Brokers: one publish port, and one small file for each kind of broker."""
