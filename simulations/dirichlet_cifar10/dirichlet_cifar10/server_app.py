"""Student and generator."""

from fedtranscribe.flower.simulated import simulated_server_app

app = simulated_server_app("dirichlet_cifar10")
