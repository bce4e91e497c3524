"""FedDPSD whose holder 3 loses its process once, in the middle of the first round."""
