"""The systems that `peers` and `peer_generators` compare us with."""
