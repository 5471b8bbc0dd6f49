"""Clocks, probes and statistics. What is measured and how it is measured never meet: the loop knows no probe."""
