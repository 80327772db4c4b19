"""The tables of orders and bills."""
