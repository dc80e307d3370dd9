"""Penstock over HTTP: its own interface, Amazon SQS's, health and metrics, on one port."""
