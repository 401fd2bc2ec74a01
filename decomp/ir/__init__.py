"""Calls: ops and their spellings, schemas, arguments by name, effects, aliases."""
