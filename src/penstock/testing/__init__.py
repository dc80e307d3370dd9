"""The suites that every store and every backend passes; shipped, so that others can run them too."""
