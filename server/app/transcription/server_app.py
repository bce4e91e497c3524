"""Generator, student and main loop."""

from fedtranscribe.flower.deployed import deployed_server_app

app = deployed_server_app("transcription")
