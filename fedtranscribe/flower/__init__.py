"""Everything that imports Flower: apps, ServerApps, ClientApps, and the grid as a transport.

over_flower.py  holders behind Flower's grid; records.py: our messages as its records
simulated.py    server and holders of a simulation; deployed.py: the server of a deployment
relay.py        all that a deployed holder's ClientApp does
superlink.py    a SuperLink of one's own, for `fedtranscribe simulate`
"""
