"""The engine: claim → attempt → settle, for any number of queues, each with its destination."""
