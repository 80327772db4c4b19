"""Sources: the port by which a consumer receives (`port`), and a small source for each kind of broker."""
