"""Sources: the port by which a consumer receives, and one small file for each broker."""
