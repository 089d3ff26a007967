"""`make demo`: real etcd, leader, workers and two vLLM servers on one machine, watched by a client."""
