"""A model of two-phase commit, small enough to visit every state that crashes, late messages and time can bring about.

What the coordinator and recovery do next is decided by the rules themselves. The model adds what they run on: servers
that keep prepared branches, a log with locks, a network that loses answers, a clock. The coordinator may stop for ever
at any point, and go on at any later point: recovery alone must bring everything to its end.
"""
