"""Programs in and out: modules, graph modules, exported programs, Dynamo's graphs."""
