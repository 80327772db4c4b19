"""The tables: create, upgrade, guard and grant them."""
