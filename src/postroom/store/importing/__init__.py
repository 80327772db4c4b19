"""Tables of other outboxes: read and marked in the transaction that adds their messages to ours."""
