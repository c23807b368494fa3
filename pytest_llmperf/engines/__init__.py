"""What a server is and can hold, and its live gauges: one file per engine behind one Protocol."""
