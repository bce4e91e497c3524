"""A deployed holder: a node behind a local socket, in a process of its own, without Flower."""
