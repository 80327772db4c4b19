"""Connections: the caller's, recognised by kind, and our own."""
