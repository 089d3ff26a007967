"""Tagged, versioned messages, one module per channel. Values only: no sockets, no state."""
