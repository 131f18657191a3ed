"""Time, requests and choices: sessions, devices, progress."""
