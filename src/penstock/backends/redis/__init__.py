"""The Redis family: Redis, Valkey, KeyDB and Dragonfly, single or as a cluster."""
