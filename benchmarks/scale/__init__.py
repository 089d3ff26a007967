"""A leader at the size of a large cluster: real processes, a few of them standing for hundreds of workers each."""
