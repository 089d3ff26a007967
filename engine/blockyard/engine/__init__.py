"""What runs inside an engine process: the attachment to the node's worker, and the copies GPU to host pool.

    identity          who the engine is
    session           one connection: connect, handshake, hang-up
    breaker           when the next attempt may be made
    pool_map          the worker's memory, mapped
    scheduler_client  the scheduler's side: what is there, pins, fills, counters
    rank_client       a rank's side: the copy thread
    jobs              what a rank is asked to copy, and what came of it
    copies            device copies: cpu, cuda
    light             a small engine without vLLM
    vllm              the connector

Nothing here raises into the engine because of the link: trouble detaches, is counted, and attaching goes on
in the background.
"""
