"""Sagas in the database."""
