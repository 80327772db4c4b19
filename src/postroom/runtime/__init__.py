"""What relay, consumer and web share: start and stop, backoff, time limits, threads, wake-ups, worker names."""
