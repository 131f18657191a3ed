"""Native code on the host: machines, object code, and functions in memory."""
