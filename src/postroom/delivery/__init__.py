"""The delivery engine: claims what is due in any number of queues, delivers it, and settles the outcome."""
