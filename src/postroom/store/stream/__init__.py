"""The stream on PostgreSQL: messages without a delivery, read from the write-ahead log through a slot."""
