"""What every operation on the tables is made of: steps, dialects, names, states, rows."""
