"""Programs that show Postroom in use, to read, run and copy."""
