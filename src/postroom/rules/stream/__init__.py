"""Decisions about the stream: messages that relays read from PostgreSQL's write-ahead log."""
