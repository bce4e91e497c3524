"""What was learned, measured the way the field measures it."""
