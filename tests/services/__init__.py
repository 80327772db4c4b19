"""Real servers for the tests, each on a port and in a directory of its own.

`registry.get(PostgreSQL)` starts a server once a test run; `tests/conftest.py` offers them as fixtures.
A further server is one small file with a subclass of `Service`.
"""
