"""Idempotency keys for HTTP: what the middleware for ASGI, WSGI, Flask and Django share."""
