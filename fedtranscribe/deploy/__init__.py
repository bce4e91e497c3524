"""Deployment: certificates, node keys, ready folders, and what is wrong with a folder.

    certificates.py   an authority and the server's certificate, made and renewed
    pem.py            reading certificates and keys of any origin
    keys.py           the key pair by which a SuperLink knows a SuperNode
    handshake.py      TLS as the two sides will do it, in memory or with a SuperLink that runs
    folders.py        `client/` and `server/`: compose files, images, policy, made ready to fill in
    check.py          checks of such a folder, each with its fix
    launch.py         a SuperLink or SuperNode that starts only if nothing is wrong
    health.py         the health check that the images run

Only what looks at a policy imports torch; everything else starts at once.
"""
