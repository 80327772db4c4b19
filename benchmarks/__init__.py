"""Benchmarks of Postroom's cost and speed: ``python -m benchmarks`` runs all of them."""
