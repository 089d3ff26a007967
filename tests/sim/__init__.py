"""A simulator of whole clusters: the production cores under faults, in virtual time, from one seed.

clock, streams, tasks, process   virtual time, randomness by component, coroutines, processes that pause and die
network                          stream connections under the production frames: late, stalled, cut at any byte
etcd_server, etcd_client         etcd with leases, watches, outages, wipes, restores
leased_key                       a key under a lease: the production machine in virtual time
disk, files                      disks: operations in virtual time, and what their pages really hold
memory                           a worker's pool of tags and its slot table
worker_node, worker_link         a thin shell around the production WorkerCore
leader_node                      a thin shell around the production LeaderCore
engine, scheduler, rank, load    engines and what is asked of them
faults, injection                what goes wrong, drawn up front and then made to happen
checks, liveness, violation      the named invariants, during a run and after healing
world, run                       one seed's world and its run
shrink, report, __main__         a failing seed made small; what is printed; `python -m sim`
broken                           broken variants that the simulator must catch
"""
