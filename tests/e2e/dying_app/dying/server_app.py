"""The server of any simulation."""

from fedtranscribe.flower.simulated import simulated_server_app

app = simulated_server_app("dying")
