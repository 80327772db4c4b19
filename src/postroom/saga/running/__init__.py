"""Runs instances of sagas: what a relay does with the deliveries of their queues."""
