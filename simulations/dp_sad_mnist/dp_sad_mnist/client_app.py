"""The data holder that trains."""

from fedtranscribe.federation.simulated_apps import simulated_client_app

app = simulated_client_app("dp_sad_mnist")
