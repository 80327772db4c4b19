"""What Postroom costs and how fast it is: ``python -m benchmarks`` runs all of it."""
