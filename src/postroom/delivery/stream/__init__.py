"""The stream: one relay reads messages from PostgreSQL's write-ahead log, and sends them as all others are sent.

What is not sent becomes a delivery in the table, and goes the way of all deliveries: see `postroom.delivery`.
"""
