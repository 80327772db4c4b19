"""What `postroom doctor` makes of the facts: each function takes facts and returns a finding."""
