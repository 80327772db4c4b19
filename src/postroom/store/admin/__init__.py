"""The SQL of `Admin` and of metrics: count, list, look up, cancel, requeue, discard, clean up, audit."""
