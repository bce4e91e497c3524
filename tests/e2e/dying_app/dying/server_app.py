"""The server of any simulation."""

from fedtranscribe.federation.simulated_apps import simulated_server_app

app = simulated_server_app("dying")
