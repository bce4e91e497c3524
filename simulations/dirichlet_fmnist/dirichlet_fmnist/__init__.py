"""FedDPSD on Fashion-MNIST: a thin Flower app on the installed fedtranscribe."""
