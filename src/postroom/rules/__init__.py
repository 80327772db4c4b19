"""Pure decisions: no I/O, no clock and no randomness of their own.

Each rule takes what it needs to know, such as a count, a policy or a random number, and returns a value. Acting on that
value is left to the caller.
"""
