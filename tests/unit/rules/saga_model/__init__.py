"""A model of sagas, small enough to visit every state that workers, services, operators and time can bring about.

What a saga does next is decided by the rules themselves. The model adds what they run on: a database whose transactions
are its atomic steps, workers that lose their leases or die, a network that is late, a service with a barrier.
"""
