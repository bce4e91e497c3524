"""Passes messages to the holder's own service."""

from fedtranscribe.flower.relay import make_relay_app

app = make_relay_app()
