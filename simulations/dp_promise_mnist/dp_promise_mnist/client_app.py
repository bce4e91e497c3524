"""The data holder that trains."""

from fedtranscribe.flower.simulated import simulated_client_app

app = simulated_client_app("dp_promise_mnist")
