"""The server's native interface: the backend contract over HTTP, for `penstock.open("http://…")`."""
