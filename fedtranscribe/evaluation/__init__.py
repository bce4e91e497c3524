"""What finished runs are worth, and what attacks on them find."""
