"""FedDPSD on MNIST: a thin Flower app on the installed fedtranscribe."""
