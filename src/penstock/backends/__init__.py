"""Queue backends: one folder each, ignorant of each other."""
