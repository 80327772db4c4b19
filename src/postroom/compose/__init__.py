"""Make what settings name: databases, brokers and sources. All other modules are handed what they need."""
