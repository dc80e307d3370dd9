"""A store behind a server: the backend contract over HTTP."""
