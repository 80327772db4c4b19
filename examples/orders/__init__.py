"""Order intake: a service accepts orders under idempotency keys, and a relay sends them to an exchange."""
