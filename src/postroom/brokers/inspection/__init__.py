"""What `postroom doctor` asks of brokers. An inspector for each kind, behind one port. Nothing here publishes."""
