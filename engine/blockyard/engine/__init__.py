"""What runs inside an engine process: the attachment to the node's worker, and the copies GPU to host pool.

    identity, hello    who the engine is, and how it says so
    session            one connection: connect, handshake, hang-up
    breaker, detached  when the next attempt may be made, and why there is no session
    scheduler_client   the scheduler's side: what is there, pins, fills, counters
        attacher       its background thread
        scheduler_link, answers, report
    rank_client        a rank's side: the copy thread
        job_queue      between the engine's thread and the copy thread
        rank_link, transfer, pool_map
    jobs               what a rank is asked to copy, and what came of it
    copies             device copies: cpu, cuda
    light              a small engine without vLLM
    vllm               the connector

Nothing here raises into the engine because of the link: trouble detaches, is counted, and attaching goes on in the
background.
"""
