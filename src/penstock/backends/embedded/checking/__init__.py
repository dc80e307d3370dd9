"""Check, repair and reindex of an embedded store.

Truth is what cannot be had from anything else: bodies, state rows, journals, settings. The rest (ready and
due rows, hints, counters, ids of entries, held rows) is derived from it: compared by `check`, mended by a
repair, rebuilt by a reindex.
"""
