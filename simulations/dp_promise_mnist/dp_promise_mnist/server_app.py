"""Plan, progress, and the private network."""

from fedtranscribe.flower.simulated import simulated_server_app

app = simulated_server_app("dp_promise_mnist")
