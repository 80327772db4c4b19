"""The SQL behind the operator's commands: find, count, cancel, requeue, clean up."""
