"""The typed interface under `/v1`: one table of routes, in JSON and MessagePack, and its description."""
