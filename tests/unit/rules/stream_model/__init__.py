"""A model of the stream's protocol, small enough to visit every state that kills, pauses and lost slots bring about.

Where a reader begins, how far it is done, what is recorded together and what each mode means is decided by the rules
themselves. The model adds what they run on: a log with a slot, the row with the lease, the delivery table and those who
send from it, a broker, producers. All messages have one key, and are added one after another.
"""
