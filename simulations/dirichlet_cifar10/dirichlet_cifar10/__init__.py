"""FedDPSD on CIFAR-10: a thin Flower app on the installed fedtranscribe."""
