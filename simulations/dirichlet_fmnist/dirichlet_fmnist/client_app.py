"""The data holders."""

from fedtranscribe.flower.simulated import simulated_client_app

app = simulated_client_app("dirichlet_fmnist")
