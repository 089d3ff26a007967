"""`blockyard fsck`: what a directory of the disk tier holds, and whether it is what was written.

walk         every extent of every segment, read and judged
repair       what is damaged goes, by the store's own hand
report       all of that for people
main         the command: the lock, the order, the exit code
"""
