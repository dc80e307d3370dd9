"""A store that another process of this machine owns: calls go to it over a Unix socket in its folder."""
