"""What everything that runs long needs: connections that reconnect, time limits, backoff, start and stop."""
