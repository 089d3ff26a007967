"""Scripted scenarios: what the production cores say to a story told step by step, recorded and reviewed as text.

The idea is that of cockroach's datadriven tests as etcd's raft uses them (`etcd-io/raft`, testdata/*.txt). Format and
code are our own; docs/simulator.md tells how to read, run and record.

script                          a scenario's text: comments, commands, what is expected of each
arguments                       one command's words and options, checked
names, words                    keys, states and messages in plain words
transcript                      the lines that a command brings about
etcd                            what etcd would say: registrations, the election key, the cluster's uid
engine_side                     an engine's sessions, and what they remember of their jobs
worker_side, leader_side        one production core each, its invariants checked after every event
links                           frames on their way between a worker and a leader
world                           all of these in stepped time
verbs_*, verbs                  the commands
record, __main__                run, compare, record; `python -m scenarios`
"""
