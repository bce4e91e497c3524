"""What a run writes: its folder, its result, its progress."""
