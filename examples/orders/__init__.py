"""Order intake: a service takes orders under idempotency keys, and a relay brings them to an exchange."""
