"""The server's side: what a run will ask, and the rounds in which it asks and learns."""
