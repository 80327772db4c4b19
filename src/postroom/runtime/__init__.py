"""What relay, consumer and web share: background tasks, backoff, time limits, threads, wake-ups, worker names."""
