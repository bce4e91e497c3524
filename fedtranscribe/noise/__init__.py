"""Where noise comes from and who adds it: each holder, the server, or holders under masks."""
