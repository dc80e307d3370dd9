"""What bulk reads and writes of every backend share: columns of Arrow, requests, rows that are staged."""
