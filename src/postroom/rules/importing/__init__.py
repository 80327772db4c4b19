"""Messages of other outboxes: what their rows hold, and which of our messages each becomes."""
