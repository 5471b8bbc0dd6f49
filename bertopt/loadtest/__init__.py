"""What a request to a server feels: an open loop, where a slow answer does not hold up the next request."""
