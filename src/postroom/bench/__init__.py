"""Benchmarks: the relay's speed next to the fastest loop that could replace it, in one run on one database."""
