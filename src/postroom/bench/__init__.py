"""Bench: how fast the relay is, beside the fastest loop that could take its place, in one run on one database."""
