"""The data that flows through the compiler: frozen records, printers and verifiers, no policy."""
