"""The bundle as a server.

scheduler   a queue that knows lengths, waits and deadlines -> which requests make the next batch, and when; pure
grouping    lengths of what waits -> the batch that holds the oldest request; pure
cost        what a batch of a shape costs, fitted on measured ones
engine      a session in a process of its own, so that a library that dies takes no request with it
service     the threads: tokenizing, an engine each, failures told apart
app         HTTP
"""
