"""What `postroom doctor` reads from the database: tables, traffic, and the server itself. Nothing here writes."""
