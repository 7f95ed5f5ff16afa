"""Contract clauses: one file per kind, each clause one promise of the kind's interface."""
