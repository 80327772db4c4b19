"""The pages: each function answers one address."""
