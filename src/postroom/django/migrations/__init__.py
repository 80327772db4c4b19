"""Migrations, as Django finds them."""
