"""A server that does to its holders whatever it can think of, and a ClientApp that helps it."""
