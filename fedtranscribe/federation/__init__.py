"""FedDPSD (DPSD Algorithm 2) on Flower: a server with student and generator, holders with teachers.

    server.py    asks, survives missing and refusing holders, combines answers, learns
    node.py      what one data holder does with a query, whatever carries it
    protocol.py  queries, answers and refusals as Flower records
    holder.py    what a holder replies to a message: protocol in, node, protocol out
    transport.py in process, or over Flower's grid: the same values arrive
    service.py   a deployed holder's node behind a socket; relay.py is all that its ClientApp does
    deployed.py  the ServerApp for holders that have joined; simulated_apps.py plays all of them

The algorithm itself is `methods/dpsd.py`, the same as on one machine.
"""

import os

# Server and holders of a simulation share a machine; see the same line of the command line.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
