"""FedDPSD (DPSD Algorithm 2) on Flower: a server with student and generator, holders with teachers.

    server.py    asks, survives missing and refusing holders, combines answers, learns
    node.py      what one data holder does with a query, whatever carries it
    protocol.py  queries, answers and refusals as Flower records
    holder.py    the ClientApp: protocol in, node, protocol out
    transport.py in process, or over Flower's grid: the same values arrive

The algorithm itself is `methods/dpsd.py`, the same as on one machine.
"""
