"""What this worker has of its peers, and gives them. Pure, as all of the core.

settings    limits
wire        the vocabulary towards the shell
roster      who the peers are, and which of them are left alone
holders     what is known of who holds which key
questions   what the leader is asked
fetching    chunks on their way from peers
serving     chunks on their way to peers
tier        all of these as one machine
invariants  what must hold of them
"""
