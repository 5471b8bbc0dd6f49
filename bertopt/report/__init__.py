"""Records to what people read: a terminal table and a one-file HTML report.

Everything here reads `bertopt.records` and never a live object, so that any report can be made again from its JSON.
`wording` turns numbers into words, `view` and `table` turn records into geometry and cells, `plots` draws the figures that
have axes, and `terminal` and `html` put them before a reader.
"""
