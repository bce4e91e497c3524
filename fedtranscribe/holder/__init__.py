"""The data holder's side: what it computes from its private side, and how it is answered once."""
