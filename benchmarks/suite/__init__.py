"""One module for each benchmark; a module in here that declares `BENCHMARK` is registered by that."""
