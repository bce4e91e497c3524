"""Generator, student and main loop."""

from fedtranscribe.federation.deployed import deployed_server_app

app = deployed_server_app("transcription")
