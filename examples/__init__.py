"""Programs that show Postroom at work, to be read, run and copied."""
