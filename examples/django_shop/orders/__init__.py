"""Takes orders, announces them, and bills them."""
