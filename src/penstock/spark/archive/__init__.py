"""An archive: Parquet files of journals, bodies, worlds and settings, and the log that says which count."""
