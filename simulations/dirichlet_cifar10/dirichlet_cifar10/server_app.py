"""Student and generator."""

from fedtranscribe.federation.simulated_apps import simulated_server_app

app = simulated_server_app("dirichlet_cifar10")
