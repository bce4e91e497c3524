"""The data holders."""

from fedtranscribe.federation.simulated_apps import simulated_client_app

app = simulated_client_app("dirichlet_fmnist")
