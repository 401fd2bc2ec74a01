"""Capture of programs and reconstruction of results: modules, graph modules, exported programs, Dynamo's graphs."""
