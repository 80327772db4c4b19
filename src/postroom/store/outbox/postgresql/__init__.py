"""The lease protocol's hot parts on PostgreSQL: each one statement, one round trip, one commit.

Rows are locked in the order of their positions, so that workers cannot deadlock.
"""
