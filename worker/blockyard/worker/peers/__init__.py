"""Chunks between workers: sockets and threads of the peer channel. Decides nothing; the core says what is fetched, and
what is served.

    channel     one connection: frames and bare bytes, each call with a deadline
    names       host names, looked up without holding anybody up
    dialing     a connection to a peer, up to its welcome
    exchange    one fetch over a connection: the question, the answer, the bytes into their slots
    lanes       what waits for which peer, and its connections
    fetching    the threads that fetch
    entrance    whether whoever connects is let in
    session     one peer's connection, and what it is sent
    server      the listening socket and all sessions
    side        all of these beside the event loop
"""
